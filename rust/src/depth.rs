//! How deep a template nests and chains, judged by its tokens: whoever walks through its syntax tree, be it the parser,
//! the code generator or only the tree's end, takes stack for every level, and `a.a.a...` has a level every two bytes.

use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;

use crate::failure::{Failure, Outcome};

/// Tokens that may lead to one place of an expression: those before it since the last comma, and likewise for every
/// bracket around it. Each adds at most a level. Real templates have below 200.
const MAX_TOKENS: usize = 1000;
/// `elif`s that may lead to one place of the template: each opens a branch within the one before.
const MAX_BRANCHES: usize = 400;

/// Refuses sources that nest or chain beyond these limits. What is wrong with one otherwise is the parser's to say.
pub fn check_depth(source: &str, syntax: SyntaxConfig) -> Outcome<()> {
    let mut tokens = Levels::new();
    let mut branches = Levels::new();
    let mut at_block_start = false;
    for item in tokenize(source, false, syntax) {
        let Ok((token, span)) = item else { return Ok(()) };
        match token {
            Token::BlockStart | Token::VariableStart => tokens = Levels::new(),
            Token::Comma => tokens.restart(),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => tokens.open(),
            Token::BracketClose | Token::ParenClose | Token::BraceClose => tokens.close(),
            _ => tokens.add(),
        }
        match token {
            Token::Ident("if") if at_block_start => branches.open(),
            Token::Ident("elif") if at_block_start => branches.add(),
            Token::Ident("endif") if at_block_start => branches.close(),
            _ => {}
        }
        at_block_start = matches!(token, Token::BlockStart);
        if tokens.total > MAX_TOKENS || branches.total > MAX_BRANCHES {
            return Err(Failure::corrupt(format!("nested or chained too deeply (line {})", span.start_line)));
        }
    }
    Ok(())
}

/// A count for each open bracket, and their sum.
struct Levels {
    counts: Vec<usize>,
    total: usize,
}

impl Levels {
    fn new() -> Levels {
        Levels { counts: vec![0], total: 0 }
    }

    fn add(&mut self) {
        if let Some(last) = self.counts.last_mut() {
            *last += 1;
            self.total += 1;
        }
    }

    fn open(&mut self) {
        self.add();
        self.counts.push(0);
    }

    fn close(&mut self) {
        if self.counts.len() > 1 {
            self.total -= self.counts.pop().unwrap_or(0);
        }
    }

    /// What came before in the innermost bracket leads nowhere any more.
    fn restart(&mut self) {
        if let Some(last) = self.counts.last_mut() {
            self.total -= std::mem::take(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted(source: &str) -> bool {
        check_depth(source, crate::template_env::syntax()).is_ok()
    }

    #[test]
    fn chains_and_brackets_count_together() {
        let half = MAX_TOKENS / 2;
        assert!(is_accepted(&format!("{{{{ {}a }}}}", "-".repeat(half))));
        assert!(!is_accepted(&format!("{{{{ {}({}a) }}}}", "-".repeat(half), "-".repeat(half))));
        assert!(is_accepted(&format!("{{{{ ({0}a, {0}a, {0}a) }}}}", "-".repeat(half))));
        assert!(is_accepted(&format!("{{{{ f({0}a) }}}}", "-".repeat(half)).repeat(3)));
        assert!(!is_accepted(&format!("{{{{ a{} }}}}", ".a".repeat(half))));
        assert!(!is_accepted(&format!("{{% set x = a{} %}}", "[0]".repeat(MAX_TOKENS))));
    }

    #[test]
    fn branches_count_until_their_end() {
        let elif = "{% elif a %}".repeat(MAX_BRANCHES / 2);
        let one = format!("{{% if a %}}{elif}{{% endif %}}");
        assert!(is_accepted(&one.repeat(5)));
        assert!(!is_accepted(&format!("{{% if a %}}{elif}{one}{{% endif %}}")));
    }

    #[test]
    fn wide_tables_and_broken_sources_pass() {
        assert!(is_accepted(&format!("{{% set x = {{{}}} %}}", "'key': ['a', 1], ".repeat(5000))));
        for source in ["{{ ] ) } }}", "{% endif %}{% endif %}", "{{ 'a", "{% elif", ""] {
            assert!(is_accepted(source), "{source}");
        }
    }
}
