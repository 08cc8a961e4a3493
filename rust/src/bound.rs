//! How many bytes of text one token can stand for at most, where the file allows to say so.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::tokenizer::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// 0: no bound. With a bound b, a text of n bytes has at least n / b tokens, which lets a caller refuse a prompt of
/// megabytes without splitting it. That needs a vocabulary with every byte (else unknown text may vanish), parts that
/// never drop text, and a normalizer that shrinks text by a known factor at most.
pub fn max_bytes_per_token(
    model: &ModelWrapper,
    vocab: &HashMap<String, u32>,
    normalizer: &Option<NormalizerWrapper>,
    pre_tokenizer: &Option<PreTokenizerWrapper>,
) -> usize {
    let ModelWrapper::BPE(bpe) = model else { return 0 };
    let parts = serde_json::to_value(pre_tokenizer).unwrap_or(Value::Null);
    let by_bytes = contains_type(&parts, "ByteLevel") && has_every_byte_character(vocab);
    let by_fallback = bpe.byte_fallback && (0..=255).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")));
    let shrink = shrink_factor(&serde_json::to_value(normalizer).unwrap_or(Value::Null));
    if !(by_bytes || by_fallback) || !keeps_text(&parts) || shrink == 0 {
        return 0;
    }
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    longest.saturating_mul(shrink)
}

fn contains_type(part: &Value, name: &str) -> bool {
    part["type"] == name || part["pretokenizers"].as_array().is_some_and(|all| all.iter().any(|p| contains_type(p, name)))
}

fn has_every_byte_character(vocab: &HashMap<String, u32>) -> bool {
    crate::stream::byte_of_character().keys().all(|c| vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str))
}

fn keeps_text(part: &Value) -> bool {
    match part["type"].as_str() {
        None => part.is_null(),
        Some("Sequence") => part["pretokenizers"].as_array().is_some_and(|all| all.iter().all(keeps_text)),
        Some("Split") => part["behavior"] != "Removed",
        Some("ByteLevel" | "Metaspace" | "Digits") => true,
        Some(_) => false,
    }
}

/// Bytes in for each byte out, at most; 0: not known.
fn shrink_factor(part: &Value) -> usize {
    match part["type"].as_str() {
        None => usize::from(part.is_null()),
        Some("Sequence") => {
            let all = part["normalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            all.iter().map(shrink_factor).try_fold(1, usize::checked_mul).unwrap_or(0)
        }
        Some("Prepend") => 1,
        Some("NFD") => 2,   // a compatibility ideograph of 4 bytes becomes 3
        Some("NFC") => 3,   // three jamo of 3 bytes become one syllable of 3
        Some("NFKD") => 4,  // a mathematical letter of 4 bytes becomes 1
        Some("NFKC") => 12, // both
        Some("Replace") => {
            let pattern = part["pattern"]["String"].as_str().map_or(usize::MAX, str::len);
            let content = part["content"].as_str().map_or(0, str::len);
            usize::from(content >= pattern)
        }
        Some(_) => 0,
    }
}
