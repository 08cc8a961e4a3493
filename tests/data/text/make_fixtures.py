#!/usr/bin/env python3
"""Writes the tokenizers and expected values of text_test with the reference implementations.

pip install tokenizers==0.23.* transformers==5.* jinja2==3.1.*; python3 make_fixtures.py
"""
import datetime
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
import transformers.utils.chat_template_utils as chat

HERE = pathlib.Path(__file__).parent
random.seed(7)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't 1234567 times faster, we'll see!\n",
    "def main(args):\n    return [x ** 2 for x in range(10) if x % 3 == 0]\n\n\n",
    "Grüße aus Köln, naïve café, señor, übermäßig; le garçon était là où il fallait.\n",
    "Привет, как дела? Всё хорошо. 日本語のテキスト。中文句子，标点符号。\n",
    "user assistant system tool message content think answer question <b>bold</b> [list] {json: true}\n",
    "   spaces   and\ttabs\r\nand newlines\n\n  \n",
] * 20

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


def special(*texts, **kw):
    return [AddedToken(t, special=True, normalized=False, **kw) for t in texts]


def byte_level(pattern, vocab=420):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return t


def qwen_like():
    t = byte_level(QWEN)
    t.normalizer = normalizers.NFC()
    t.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    t.add_tokens([AddedToken(x, special=False, normalized=False)
                  for x in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")])
    return t


def llama3_like():
    t = byte_level(GPT4)
    t.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                 "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"))
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return t


def sentencepiece_like(metaspace, vocab=420):
    """SentencePiece BPE with byte fallback; spaces by a normalizer (Llama-2) or by Metaspace (Mistral)."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    latin = [line for line in CORPUS if "日" not in line]
    trained.train_from_iterator(latin, trainers.BpeTrainer(
        vocab_size=vocab - 259, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=70))
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    order = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [p for p in pieces if p not in ("<unk>", "<s>", "</s>")]
    if metaspace:
        order = order[:3] + ["[INST]", "[/INST]", "[TOOL_CALLS]"] + order[3:]
    t.model = models.BPE(vocab={p: i for i, p in enumerate(order)}, merges=[tuple(m) for m in model["merges"]],
                         unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    if metaspace:
        t.add_special_tokens(special("[INST]", "[/INST]", "[TOOL_CALLS]"))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    return t


def odd_added_tokens():
    """Added tokens with every switch, a normalizer that changes them, a Metaspace decoder."""
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.train_from_iterator(CORPUS[:3], trainers.BpeTrainer(vocab_size=160, special_tokens=["<unk>"], show_progress=False))
    t.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True),
                          AddedToken("<SEP>", special=True, normalized=True),
                          AddedToken("<end>", special=True, normalized=False, rstrip=True)])
    t.add_tokens([AddedToken("Day", normalized=True, single_word=True),
                  AddedToken("ing", normalized=False, single_word=True),
                  AddedToken("é", normalized=True)])
    return t


def word_piece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(CORPUS[:3], trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]", "[CLS]", "[SEP]"],
                                                                show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return t


def no_decoder():
    t = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "<unk>": 3}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t


TEXTS = ["", " ", "a", "Hello world", " leading and trailing ", "two  spaces   three", "\n\n a\r\n\tb", "isn't WE'LL I'm",
         "1234567890", "naïve café", "e\u0301 combining", "日本語 and 中文", "👩‍👩‍👧‍👦 family 🏳️‍🌈", "\u0000nul", "▁meta▁space",
         "<0x41> bytes", "ﬁ ligature Ｆｕｌｌ ＜s＞", "Day day Monday DAY day.", "walking ing (ing) ings",
         "<s>", "a<s>b", " <s> </s> ", "x <mask> y<mask>", "x <SEP> <sep> y <end>   z", "[INST] hi [/INST]",
         "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_start|>", "<|im_<|im_end|>", "<think>\n\n</think>\n\nok",
         "<|begin_of_text|><|start_header_id|>x<|end_header_id|>\n\n<|eot_id|>", "[UNK] [CLS] un##known", "a b c d",
         "code:\n    if x:\n        return\n"]


def encode_cases(t):
    rows = []
    for text in TEXTS:
        t.encode_special_tokens = False
        row = {"text": text, "ids": t.encode(text, add_special_tokens=False).ids,
               "framed": t.encode(text, add_special_tokens=True).ids}
        t.encode_special_tokens = True
        row["plain"] = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = False
        rows.append(row)
    return rows


def decode_cases(t):
    used = sorted(t.get_vocab(with_added_tokens=True).values())
    rows = []
    sequences = [t.encode(text, add_special_tokens=True).ids for text in TEXTS if text]
    sequences += [[random.choice(used) for _ in range(random.randint(1, 24))] for _ in range(30)]
    low = [i for i in used if i < 300]
    sequences += [[random.choice(low) for _ in range(random.randint(1, 24))] for _ in range(30)]
    for ids in sequences:
        rows.append({"ids": ids, "all": t.decode(ids, skip_special_tokens=False),
                     "skipped": t.decode(ids, skip_special_tokens=True)})
    return rows


class FrozenDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 0, 0)


def template_cases(tokenizers):
    chat.datetime = FrozenDatetime
    cases = json.loads((HERE / "chat_cases.json").read_text())
    rows = []
    for case in cases:
        source = (HERE / case["template"]).read_text()
        arguments = dict(case.get("arguments", {}))
        names = case.get("special_tokens", {})
        messages = [{k: v for k, v in m.items() if v is not None} for m in case["messages"]]
        try:
            rendered, _ = chat.render_jinja_template([messages], tools=case.get("tools"), chat_template=source,
                                                     **{**names, **arguments})
            answer = {"text": rendered[0]}
            if case.get("tokenizer"):
                answer["ids"] = tokenizers[case["tokenizer"]].encode(rendered[0], add_special_tokens=False).ids
        except Exception as e:  # the template's own refusal
            answer = {"error": str(e)}
        rows.append({**case, "expected": answer})
    return rows


def main():
    tokenizers = {"qwen_like": qwen_like(), "llama3_like": llama3_like(), "llama2_like": sentencepiece_like(False),
                  "mistral_like": sentencepiece_like(True), "odd_added_tokens": odd_added_tokens(),
                  "word_piece": word_piece(), "no_decoder": no_decoder()}
    for name, t in tokenizers.items():
        (HERE / f"{name}.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False))
        expected = {"encode": encode_cases(t), "decode": decode_cases(t)}
        (HERE / f"{name}.expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")))
    rows = template_cases(tokenizers)
    (HERE / "chat_expected.json").write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n")


main()
