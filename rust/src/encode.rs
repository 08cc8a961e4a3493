//! Text to ids: the library's own pipeline (added tokens, normalizer, added tokens again, pre-tokenizer, model), except
//! that added tokens are matched here, so that special ones can be told apart by who wrote them.

use std::time::{Duration, Instant};

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use fancy_regex::Regex;
use tokenizers::normalizer::Range;
use tokenizers::tokenizer::{
    AddedToken, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, Token,
};

use crate::failure::{Code, Failure, Outcome};
use crate::pre_tokenize::check;
use crate::tokenizer::Tokenizer;

pub struct EncodeOptions<'a> {
    pub add_special_tokens: bool,
    pub parse_special_tokens: bool,
    pub max_ms: i64,
    /// Given: parts of the text are not to be trusted. A special token counts only as it is spelled, and not with one of
    /// these ascending offsets strictly inside.
    pub broken_at: Option<&'a [usize]>,
}

type Automaton = DoubleArrayAhoCorasick<u32>;

/// Finds added tokens, leftmost first, longest first. As in the library, some are looked for in the raw text, the
/// others (normalized: true) in the normalized text in their normalized form.
pub struct Matchers {
    tokens: Vec<(u32, AddedToken)>,
    raw: Option<Automaton>,
    normalized: Option<Automaton>,
    word_character: Regex,
}

impl Matchers {
    pub fn new(tokens: &[(u32, AddedToken)], normalizer: Option<&NormalizerWrapper>) -> Outcome<Matchers> {
        let (mut raw, mut normalized) = (vec![], vec![]);
        for (index, (_, token)) in tokens.iter().enumerate() {
            if !token.normalized {
                raw.push((token.content.clone(), index as u32));
                continue;
            }
            let mut text = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut text).map_err(|e| Failure::unbox(e, Code::Corrupt, "normalizer"))?;
            }
            normalized.push((text.get().to_owned(), index as u32));
        }
        let word_character = Regex::new(r"\w").map_err(|e| Failure::corrupt(e.to_string()))?;
        Ok(Matchers { tokens: tokens.to_vec(), raw: automaton(raw)?, normalized: automaton(normalized)?, word_character })
    }

    /// No word character directly before or behind.
    fn stands_alone(&self, text: &str, start: usize, end: usize) -> bool {
        let is_word = |c: char| self.word_character.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false);
        !text[..start].chars().next_back().is_some_and(is_word) && !text[end..].chars().next().is_some_and(is_word)
    }
}

fn automaton(patterns: Vec<(String, u32)>) -> Outcome<Option<Automaton>> {
    if patterns.is_empty() {
        return Ok(None);
    }
    DoubleArrayAhoCorasickBuilder::new()
        .match_kind(MatchKind::LeftmostLongest)
        .build_with_values(patterns)
        .map(Some)
        .map_err(|e| Failure::corrupt(format!("added_tokens: {e}")))
}

/// Which matches of special tokens count.
struct Trust<'a> {
    options: &'a EncodeOptions<'a>,
    original: &'a str,
}

impl Trust<'_> {
    /// Is `start..end` of the original text the special token `text`, written by someone who may write it?
    fn accepts(&self, text: &str, start: usize, end: usize) -> bool {
        if !self.options.parse_special_tokens {
            return false;
        }
        let Some(broken) = self.options.broken_at else { return true };
        // A normalizer may turn other characters into the token's (full-width forms, case) or take the space beside it
        // along: a template writes special tokens as they are.
        let found = &self.original[start..end];
        let Some(at) = found.find(text).filter(|_| found.trim() == text.trim()) else { return false };
        let (start, end) = (start + at, start + at + text.len());
        let first = broken.partition_point(|&at| at < start);
        let inside = broken[first..].iter().find(|&&at| at > start).is_some_and(|&at| at < end);
        if inside {
            return false;
        }
        // One character has no inside: it is broken when both its sides are.
        let one_character = text.chars().nth(1).is_none();
        !(one_character && broken[first..].starts_with(&[start, end]))
    }
}

struct Cut {
    start: usize,
    end: usize,
    id: Option<u32>,
}

impl Tokenizer {
    pub fn encode(&self, text: &str, options: &EncodeOptions) -> Outcome<Vec<u32>> {
        let deadline = Instant::now() + Duration::from_millis(options.max_ms.clamp(0, 3_600_000) as u64);
        let trust = Trust { options, original: text };
        let mut pieces = PreTokenizedString::from(text);
        let failed = |e| Failure::unbox(e, Code::InvalidArgument, "the tokenizer cannot take this text");
        pieces.split(|_, piece| Ok(self.cut(piece, &self.matchers.raw, &trust))).map_err(failed)?;
        pieces
            .split(|_, mut piece| {
                if let Some(normalizer) = &self.normalizer {
                    normalizer.normalize(&mut piece)?;
                }
                check(deadline)?;
                Ok(self.cut(piece, &self.matchers.normalized, &trust))
            })
            .map_err(failed)?;
        for stage in &self.stages {
            stage.run(&mut pieces, deadline)?;
        }
        pieces
            .tokenize(|piece| {
                check(deadline)?;
                self.model.tokenize(piece.get())
            })
            .map_err(failed)?;
        Ok(self.collect(&pieces, options.add_special_tokens))
    }

    fn collect(&self, pieces: &PreTokenizedString, add_special_tokens: bool) -> Vec<u32> {
        let mut ids = if add_special_tokens { self.prefix.clone() } else { vec![] };
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        if add_special_tokens {
            ids.extend(&self.suffix);
        }
        ids
    }

    fn cut(
        &self,
        piece: NormalizedString,
        automaton: &Option<Automaton>,
        trust: &Trust,
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let Some(automaton) = automaton else { return vec![(piece, None)] };
        let cuts = self.find_cuts(&piece, automaton, trust);
        if let [Cut { id: None, .. }] = cuts[..] {
            return vec![(piece, None)];
        }
        cuts.into_iter()
            .filter_map(|cut| {
                let slice = piece.slice(Range::Normalized(cut.start..cut.end))?;
                let token = cut.id.map(|id| vec![Token::new(id, String::new(), (0, cut.end - cut.start))]);
                Some((slice, token))
            })
            .collect()
    }

    /// Covers all of `piece`: added tokens and what lies between them.
    fn find_cuts(&self, piece: &NormalizedString, automaton: &Automaton, trust: &Trust) -> Vec<Cut> {
        let text = piece.get();
        let mut cuts = vec![];
        let mut from = 0; // where the next match may begin
        let mut done = 0; // what is covered by `cuts`
        while let Some(found) = automaton.leftmost_find_iter(&text.as_bytes()[from..]).next() {
            let (start, end) = (from + found.start(), from + found.end());
            let (id, token) = &self.matchers.tokens[found.value() as usize];
            if token.special && !trusted(piece, &token.content, start, end, trust) {
                // Another token may begin inside it.
                from = start + text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            from = end;
            if token.single_word && !self.matchers.stands_alone(text, start, end) {
                continue;
            }
            let start = if token.lstrip { text[done..start].trim_end().len() + done } else { start };
            let end = if token.rstrip { text.len() - text[end..].trim_start().len() } else { end };
            if done < start {
                cuts.push(Cut { start: done, end: start, id: None });
            }
            cuts.push(Cut { start, end, id: Some(*id) });
            (done, from) = (end, end);
        }
        if done < text.len() || cuts.is_empty() {
            cuts.push(Cut { start: done, end: text.len(), id: None });
        }
        cuts
    }
}

fn trusted(piece: &NormalizedString, content: &str, start: usize, end: usize, trust: &Trust) -> bool {
    let base = piece.offsets_original().0;
    match piece.convert_offsets(Range::Normalized(start..end)) {
        Some(range) => trust.accepts(content, base + range.start, base + range.end),
        None => false,
    }
}
