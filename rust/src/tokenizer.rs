//! tokenizer.json, read strictly, and the two small directions: id to token and ids to text.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::tokenizer::{
    AddedToken, AddedVocabulary, Decoder, DecoderWrapper, Encoding, Model, ModelWrapper, NormalizerWrapper,
    PostProcessor, PreTokenizerWrapper, Token,
};

use crate::bound;
use crate::encode::Matchers;
use crate::failure::{shorten, Code, Failure, Outcome};
use crate::pre_tokenize::PreTokenizeStage;
use crate::stream::StreamKind;

/// No known vocabulary has above 2^20 entries; 2^24 keeps ids within int32 and tables within reason.
const MAX_ID: u32 = (1 << 24) - 1;

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// The whole file, each part still as text. Truncation and padding are left out on purpose: they are the training
/// script's, not the model's.
#[derive(Deserialize)]
struct TokenizerFile<'a> {
    #[serde(default)]
    version: Option<String>,
    #[serde(default, borrow)]
    added_tokens: Option<&'a RawValue>,
    #[serde(default, borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(default, borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(default, borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

/// One part of the file; an error names it and its type.
fn part<T: DeserializeOwned>(name: &str, raw: Option<&RawValue>) -> Outcome<Option<T>> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(None) };
    serde_json::from_str(raw.get()).map(Some).map_err(|e| {
        #[derive(Deserialize)]
        struct Typed {
            r#type: String,
        }
        let of_type = match serde_json::from_str::<Typed>(raw.get()) {
            Ok(typed) => format!(" of type \"{}\"", shorten(&typed.r#type)),
            Err(_) => String::new(),
        };
        Failure::corrupt(format!("{name}{of_type}: {}", shorten(&e.to_string())))
    })
}

pub struct Tokenizer {
    pub(crate) model: ModelWrapper,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) stages: Vec<PreTokenizeStage>,
    pub(crate) matchers: Matchers,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) decoder: Option<DecoderWrapper>,
    pub(crate) stream_kind: StreamKind,
    added: AddedVocabulary,
    added_list: Vec<(u32, AddedToken)>,
    special_texts: HashSet<String>,
    max_id: u32,
    memory_bytes: usize,
    max_bytes_per_token: usize,
}

impl Tokenizer {
    pub fn parse(json: &[u8]) -> Outcome<Tokenizer> {
        let file: TokenizerFile = serde_json::from_slice(json)
            .map_err(|e| Failure::corrupt(format!("not a tokenizer: {}", shorten(&e.to_string()))))?;
        check_version(&file.version)?;
        let model: ModelWrapper =
            part("model", Some(file.model))?.ok_or_else(|| Failure::corrupt("not a tokenizer: model is null"))?;
        check_model(&model)?;
        let entries: Vec<AddedEntry> = part("added_tokens", file.added_tokens)?.unwrap_or_default();
        check_added(&entries)?;
        let normalizer: Option<NormalizerWrapper> = part("normalizer", file.normalizer)?;
        let pre_tokenizer: Option<PreTokenizerWrapper> = part("pre_tokenizer", file.pre_tokenizer)?;
        let decoder: Option<DecoderWrapper> = part("decoder", file.decoder)?;
        let (prefix, suffix) = surroundings(&part("post_processor", file.post_processor)?)?;

        let vocab = model.get_vocab();
        let max_bytes_per_token = bound::max_bytes_per_token(&model, &vocab, &normalizer, &pre_tokenizer);
        let mut added = AddedVocabulary::new();
        added
            .add_tokens(entries.iter().map(|t| t.token.clone()), &model, normalizer.as_ref())
            .map_err(|e| Failure::unbox(e, Code::Corrupt, "added_tokens"))?;
        check_ids(&vocab, &entries, &added, &model)?;
        let mut added_list: Vec<(u32, AddedToken)> = entries.into_iter().map(|t| (t.id, t.token)).collect();
        added_list.sort_by_key(|(id, _)| *id);

        let max_id = vocab.values().copied().chain(added_list.iter().map(|(id, _)| *id)).max().unwrap_or(0);
        let longest_added = added_list.iter().map(|(_, t)| t.content.len()).max().unwrap_or(0);
        let swallows = added_list.iter().any(|(_, t)| t.lstrip || t.rstrip);
        check_surroundings(&prefix, &suffix, max_id)?;
        Ok(Tokenizer {
            matchers: Matchers::new(&added_list, normalizer.as_ref())?,
            stages: PreTokenizeStage::list(pre_tokenizer)?,
            stream_kind: StreamKind::of(&decoder),
            special_texts: added_list.iter().filter(|(_, t)| t.special).map(|(_, t)| t.content.clone()).collect(),
            memory_bytes: estimate_memory(&model, &vocab, &added_list),
            max_bytes_per_token: if swallows || max_bytes_per_token == 0 {
                0
            } else {
                max_bytes_per_token.max(longest_added)
            },
            model,
            normalizer,
            decoder,
            prefix,
            suffix,
            added,
            added_list,
            max_id,
        })
    }

    pub fn describe(&self) -> String {
        let added: Vec<Value> = self
            .added_list
            .iter()
            .map(|(id, t)| json!({"id": id, "text": t.content, "special": t.special}))
            .collect();
        json!({
            "vocab": u64::from(self.max_id) + 1,
            "memory_bytes": self.memory_bytes,
            "max_bytes_per_token": self.max_bytes_per_token,
            "prefix": self.prefix,
            "suffix": self.suffix,
            "added": added,
        })
        .to_string()
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.added.token_to_id(token, &self.model)
    }

    /// The vocabulary's spelling, which is what decoders work on.
    pub fn token_text(&self, id: i32) -> Outcome<String> {
        u32::try_from(id)
            .ok()
            .and_then(|id| self.added.simple_id_to_token(id).or_else(|| self.model.id_to_token(id)))
            .ok_or_else(|| Failure::invalid(format!("id {id} has no token (ids go from 0 to {})", self.max_id)))
    }

    pub fn is_special(&self, token: &str) -> bool {
        self.special_texts.contains(token)
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Outcome<String> {
        let mut tokens = Vec::with_capacity(ids.len());
        for &id in ids {
            let token = self.token_text(id)?;
            if !(skip_special_tokens && self.is_special(&token)) {
                tokens.push(token);
            }
        }
        self.join(tokens)
    }

    /// Spellings to text.
    pub fn join(&self, tokens: Vec<String>) -> Outcome<String> {
        if tokens.is_empty() {
            return Ok(String::new()); // one of the library's decoders panics on it
        }
        match &self.decoder {
            Some(decoder) => decoder.decode(tokens).map_err(|e| Failure::unbox(e, Code::Corrupt, "decoder")),
            None => Ok(tokens.join(" ")),
        }
    }
}

fn check_version(version: &Option<String>) -> Outcome<()> {
    match version.as_deref() {
        None | Some("1.0") => Ok(()),
        Some(other) => Err(Failure::corrupt(format!("version \"{}\", expected \"1.0\"", shorten(other)))),
    }
}

fn check_model(model: &ModelWrapper) -> Outcome<()> {
    if model.get_vocab_size() == 0 {
        return Err(Failure::corrupt("model.vocab is empty"));
    }
    if let ModelWrapper::BPE(bpe) = model {
        if bpe.dropout.is_some_and(|p| p > 0.0) {
            return Err(Failure::new(Code::Unsupported, "model.dropout: the ids would be random; set it to null"));
        }
    }
    Ok(())
}

fn check_added(entries: &[AddedEntry]) -> Outcome<()> {
    let mut seen = HashSet::new();
    for entry in entries {
        if entry.token.content.is_empty() {
            return Err(Failure::corrupt(format!("added token {} has no text", entry.id)));
        }
        if !seen.insert(entry.token.content.as_str()) {
            let text = shorten(&entry.token.content);
            return Err(Failure::corrupt(format!("added token \"{text}\" is listed twice")));
        }
    }
    Ok(())
}

/// One id a token and one token an id, over vocabulary and added tokens together.
fn check_ids(
    vocab: &HashMap<String, u32>,
    entries: &[AddedEntry],
    added: &AddedVocabulary,
    model: &ModelWrapper,
) -> Outcome<()> {
    let mut owner: HashMap<u32, &str> = HashMap::with_capacity(vocab.len() + entries.len());
    let vocab_pairs = vocab.iter().map(|(text, id)| (*id, text.as_str()));
    let added_pairs = entries.iter().map(|t| (t.id, t.token.content.as_str()));
    for (id, text) in vocab_pairs.chain(added_pairs) {
        if id > MAX_ID {
            let text = shorten(text);
            return Err(Failure::corrupt(format!("token \"{text}\" has id {id}, at most {MAX_ID} is accepted")));
        }
        if let Some(other) = owner.insert(id, text).filter(|&other| other != text) {
            let (a, b) = if other < text { (other, text) } else { (text, other) };
            let (a, b) = (shorten(a), shorten(b));
            return Err(Failure::corrupt(format!("tokens \"{a}\" and \"{b}\" share the id {id}")));
        }
    }
    for entry in entries {
        let given = added.token_to_id(&entry.token.content, model);
        if given != Some(entry.id) {
            let (text, given) = (shorten(&entry.token.content), given.unwrap_or(0));
            return Err(Failure::corrupt(format!(
                "added token \"{text}\" says id {}, but by its place it gets {given}: \
                 added_tokens must be ordered and follow the vocabulary without holes",
                entry.id
            )));
        }
    }
    Ok(())
}

/// What the post-processor puts before and behind a text, found by giving it one token that cannot exist.
fn surroundings(processor: &Option<PostProcessorWrapper>) -> Outcome<(Vec<u32>, Vec<u32>)> {
    const MARK: u32 = u32::MAX;
    let Some(processor) = processor else { return Ok((vec![], vec![])) };
    let encoding = Encoding::from_tokens(vec![Token::new(MARK, "x".into(), (0, 1))], 0);
    let processed = processor
        .process(encoding, None, true)
        .map_err(|e| Failure::unbox(e, Code::Corrupt, "post_processor"))?;
    let ids = processed.get_ids();
    let mut marks = ids.iter().enumerate().filter(|(_, &id)| id == MARK).map(|(at, _)| at);
    match (marks.next(), marks.next()) {
        (Some(at), None) => Ok((ids[..at].to_vec(), ids[at + 1..].to_vec())),
        _ => Err(Failure::corrupt("post_processor must keep the text exactly once")),
    }
}

fn check_surroundings(prefix: &[u32], suffix: &[u32], max_id: u32) -> Outcome<()> {
    match prefix.iter().chain(suffix).find(|&&id| id > max_id) {
        Some(id) => Err(Failure::corrupt(format!("post_processor adds id {id}, the highest is {max_id}"))),
        None => Ok(()),
    }
}

/// Each entry stands in a map by text and one by id: twice a String (24 bytes and its heap block) and an id, at a load
/// of about 7/8 and one control byte. Merges are maps of (id, id) to (rank, id).
fn estimate_memory(model: &ModelWrapper, vocab: &HashMap<String, u32>, added: &[(u32, AddedToken)]) -> usize {
    let text_bytes: usize = vocab.keys().map(String::len).sum();
    let mut total = 2 * text_bytes + vocab.len() * 2 * (24 + 16 + 8) * 8 / 7;
    if matches!(model, ModelWrapper::BPE(_)) {
        total += vocab.len() * 20 * 8 / 7; // as a rule one merge an entry
    }
    total + added.iter().map(|(_, t)| 4 * (t.content.len() + 64)).sum::<usize>()
}
