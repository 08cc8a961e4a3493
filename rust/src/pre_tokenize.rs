//! The pre-tokenizer of the file, with its patterns run by us: the library ends silently where a pattern gives up and
//! has no time limit.

use std::time::Instant;

use fancy_regex::Regex;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::{Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::failure::{shorten, Code, Failure, Outcome};

pub enum PreTokenizeStage {
    Split { regex: Regex, behavior: SplitDelimiterBehavior, invert: bool },
    Library(Box<PreTokenizerWrapper>),
}

impl PreTokenizeStage {
    /// The stages in the order in which they run.
    pub fn list(pre_tokenizer: Option<PreTokenizerWrapper>) -> Outcome<Vec<PreTokenizeStage>> {
        let mut stages = Vec::new();
        if let Some(wrapper) = pre_tokenizer {
            append(wrapper, &mut stages)?;
        }
        Ok(stages)
    }

    pub fn run(&self, text: &mut PreTokenizedString, deadline: Instant) -> Outcome<()> {
        match self {
            PreTokenizeStage::Library(wrapper) => wrapper.pre_tokenize(text),
            PreTokenizeStage::Split { regex, behavior, invert } => text.split(|_, piece| {
                let pattern = TimedPattern { regex, deadline };
                if *invert {
                    piece.split(Invert(pattern), *behavior)
                } else {
                    piece.split(pattern, *behavior)
                }
            }),
        }
        .map_err(|e| Failure::unbox(e, Code::InvalidArgument, "the tokenizer cannot split this text"))
    }
}

fn append(wrapper: PreTokenizerWrapper, stages: &mut Vec<PreTokenizeStage>) -> Outcome<()> {
    match wrapper {
        PreTokenizerWrapper::Sequence(sequence) => {
            for inner in sequence {
                append(inner, stages)?;
            }
        }
        PreTokenizerWrapper::Split(split) => {
            let source = match &split.pattern {
                SplitPattern::String(text) => fancy_regex::escape(text).into_owned(),
                SplitPattern::Regex(source) => source.clone(),
            };
            let regex = Regex::new(&source)
                .map_err(|e| Failure::corrupt(format!("Split pattern: {}", shorten(&e.to_string()))))?;
            stages.push(PreTokenizeStage::Split { regex, behavior: split.behavior, invert: split.invert });
        }
        other => stages.push(PreTokenizeStage::Library(Box::new(other))),
    }
    Ok(())
}

struct TimedPattern<'a> {
    regex: &'a Regex,
    deadline: Instant,
}

impl Pattern for TimedPattern<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        // Reading the clock costs about 25 ns, a match about 100 ns.
        const MATCHES_PER_LOOK: usize = 64;
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut pieces = Vec::new();
        let mut end_of_last = 0;
        for (n, found) in self.regex.find_iter(inside).enumerate() {
            if n % MATCHES_PER_LOOK == 0 {
                check(self.deadline)?;
            }
            let found = found.map_err(|e| {
                let words = format!("the tokenizer's Split pattern gave up on this text: {e}");
                Failure::invalid(shorten(&words))
            })?;
            if end_of_last != found.start() {
                pieces.push(((end_of_last, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            end_of_last = found.end();
        }
        if end_of_last != inside.len() {
            pieces.push(((end_of_last, inside.len()), false));
        }
        Ok(pieces)
    }
}

pub fn check(deadline: Instant) -> Outcome<()> {
    if Instant::now() > deadline {
        return Err(Failure::new(Code::DeadlineExceeded, "tokenizing this text took too long"));
    }
    Ok(())
}
