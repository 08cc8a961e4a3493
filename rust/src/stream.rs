//! Ids to text one at a time: what is given out is final, and all of it together is the decoding of all ids.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;
use tokenizers::tokenizer::DecoderWrapper;

use crate::failure::{Failure, Outcome};
use crate::tokenizer::Tokenizer;

/// How text grows when one more token comes, read off the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Byte-level: each token is a run of bytes, whatever stands around it.
    Bytes,
    /// Each token's text depends on its neighbours only; a run of byte tokens (<0xE2>) is judged as a whole.
    Window { byte_fallback: bool },
    /// A later token may change any earlier text: nothing is final before the end.
    Deferred,
}

impl StreamKind {
    pub fn of(decoder: &Option<DecoderWrapper>) -> StreamKind {
        let value = serde_json::to_value(decoder).unwrap_or(Value::Null);
        let mut parts = vec![];
        flatten(&value, &mut parts);
        if let [only] = parts[..] {
            if only["type"] == "ByteLevel" {
                return StreamKind::Bytes;
            }
        }
        let mut fused = false; // all tokens are one string by now: a part sees the whole text
        let mut byte_fallback = false;
        for part in parts {
            match part["type"].as_str() {
                Some("Fuse") | Some("ByteLevel") => fused = true,
                Some("Strip") if fused && part["stop"] == 0 => {}
                Some(_) if fused => return StreamKind::Deferred,
                Some("ByteFallback") => byte_fallback = true,
                Some("Strip" | "Replace" | "Metaspace" | "WordPiece" | "CTC") => {}
                _ => return StreamKind::Deferred,
            }
        }
        StreamKind::Window { byte_fallback }
    }
}

fn flatten<'a>(part: &'a Value, parts: &mut Vec<&'a Value>) {
    match part["decoders"].as_array() {
        Some(inner) => inner.iter().for_each(|p| flatten(p, parts)),
        None if part.is_null() => {}
        None => parts.push(part),
    }
}

/// The byte that a character of a byte-level vocabulary stands for (GPT-2's table: printable Latin-1 stands for
/// itself, the other bytes follow from U+0100 on).
pub fn byte_of_character() -> &'static HashMap<char, u8> {
    static TABLE: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
        let printable = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let moved = (0..=255u8).filter(|&b| !printable(b)).zip('\u{100}'..);
        let kept = (0..=255u8).filter(|&b| printable(b)).map(|b| (b, char::from(b)));
        kept.chain(moved).map(|(b, c)| (c, b)).collect()
    });
    &TABLE
}

fn byte_level_bytes(token: &str) -> Vec<u8> {
    let table = byte_of_character();
    let mapped: Option<Vec<u8>> = token.chars().map(|c| table.get(&c).copied()).collect();
    mapped.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// What a token adds to a text that has begun. Decoders treat the first text of all differently (a leading space is
/// dropped): the token stands behind itself.
pub fn token_bytes(tokenizer: &Tokenizer, id: i32) -> Outcome<Vec<u8>> {
    let token = tokenizer.token_text(id)?;
    match tokenizer.stream_kind {
        StreamKind::Bytes => return Ok(byte_level_bytes(&token)),
        StreamKind::Window { byte_fallback: true } if is_byte_token(&token) => {
            return Ok(u8::from_str_radix(&token[3..5], 16).into_iter().collect());
        }
        _ => {}
    }
    let once = tokenizer.join(vec![token.clone()])?;
    let twice = tokenizer.join(vec![token.clone(), token])?;
    Ok(twice.strip_prefix(once.as_str()).unwrap_or(once.as_str()).to_owned().into_bytes())
}

pub struct Stream {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    /// Bytes: the start of a character whose rest has not come.
    pending: Vec<u8>,
    /// Otherwise: the last tokens, of which `n_given` are already given out as `given_text`; they stay as the context
    /// that decides, for example, whether a leading space is kept.
    window: Vec<String>,
    n_given: usize,
    given_text: String,
}

impl Stream {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Stream {
        Stream { tokenizer, skip_special_tokens, pending: vec![], window: vec![], n_given: 0, given_text: String::new() }
    }

    pub fn push(&mut self, id: i32) -> Outcome<String> {
        let token = self.tokenizer.token_text(id)?;
        if self.skip_special_tokens && self.tokenizer.is_special(&token) {
            return Ok(String::new());
        }
        match self.tokenizer.stream_kind {
            StreamKind::Bytes => {
                self.pending.extend(byte_level_bytes(&token));
                Ok(take_final_text(&mut self.pending))
            }
            StreamKind::Window { byte_fallback } => {
                let hold = byte_fallback && is_byte_token(&token);
                self.window.push(token);
                if hold {
                    return Ok(String::new());
                }
                self.give_window()
            }
            StreamKind::Deferred => {
                self.window.push(token);
                Ok(String::new())
            }
        }
    }

    pub fn finish(&mut self) -> Outcome<String> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = String::from_utf8_lossy(&pending).into_owned();
        if self.n_given < self.window.len() {
            rest.push_str(&self.new_text()?.1);
        }
        self.window.clear();
        self.n_given = 0;
        self.given_text.clear();
        Ok(rest)
    }

    /// The text of the window, and the part of it that has not been given out.
    fn new_text(&self) -> Outcome<(String, String)> {
        let text = self.tokenizer.join(self.window.clone())?;
        match text.strip_prefix(self.given_text.as_str()) {
            Some(fresh) => {
                let fresh = fresh.to_owned();
                Ok((text, fresh))
            }
            None => Err(Failure::corrupt("the decoder changes text that an earlier token had completed")),
        }
    }

    fn give_window(&mut self) -> Outcome<String> {
        let (text, fresh) = match self.new_text() {
            Ok(both) => both,
            Err(failure) => {
                self.window.pop();
                return Err(failure);
            }
        };
        self.given_text = text;
        self.n_given = self.window.len();
        self.shrink_window()?;
        Ok(fresh)
    }

    /// Keeps as context the shortest run of last tokens that shows text: decoders treat the first visible text of all
    /// differently (a leading space is dropped), so the context must have some of its own.
    fn shrink_window(&mut self) -> Outcome<()> {
        // Tokens without text can only pile up in a hostile vocabulary; then the oldest are given up.
        const MAX_CONTEXT: usize = 64;
        const MAX_TRIES: usize = 4;
        for n_kept in 1..=MAX_TRIES.min(self.window.len()) {
            let start = self.window.len() - n_kept;
            let text = self.tokenizer.join(self.window[start..].to_vec())?;
            if !text.is_empty() {
                return self.restart_at(start, text);
            }
        }
        if self.window.len() > MAX_CONTEXT {
            let start = self.window.len() - MAX_CONTEXT / 2;
            let text = self.tokenizer.join(self.window[start..].to_vec())?;
            return self.restart_at(start, text);
        }
        Ok(())
    }

    fn restart_at(&mut self, start: usize, text: String) -> Outcome<()> {
        self.window.drain(..start);
        self.n_given = self.window.len();
        self.given_text = text;
        Ok(())
    }
}

fn is_byte_token(token: &str) -> bool {
    token.len() == 6
        && token.starts_with("<0x")
        && token.ends_with('>')
        && token.get(3..5).is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}

/// Takes from `bytes` all that can no longer change, each impossible sequence as one U+FFFD, and leaves the start of an
/// unfinished character.
fn take_final_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let valid_end = done + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[done..valid_end]));
                match error.error_len() {
                    Some(n) => {
                        text.push('\u{FFFD}');
                        done = valid_end + n;
                    }
                    None => {
                        bytes.drain(..valid_end);
                        return text;
                    }
                }
            }
        }
    }
}
