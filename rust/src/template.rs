//! A chat template: compiled once, rendered under limits on steps, data, depth and output.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

use minijinja::machinery::{eval, make_string_output, parse, CodeGenerator, Instructions};
use minijinja::{AutoEscape, ErrorKind, Value};

use crate::depth::check_depth;
use crate::failure::{shorten, Code, Failure, Outcome};
use crate::generation::replace_generation_tags;
use crate::harden::harden;
use crate::template_env;

/// One fuel pays for one instruction or 64 bytes of data: a prompt of a thousand messages takes about 50 000.
const FUEL: u64 = 1_000_000;
/// Long contents are copied a few times by an honest template; 16 bytes of data for each byte of input.
const INPUT_BYTES_PER_FUEL: u64 = 4;
/// Nested macros of real templates (JSON schemas) go about 20 deep.
const RECURSION_LIMIT: usize = 200;
/// Whatever recurses has a bound: sources by check_depth and harden, macros by the limit above, values by Measure. The
/// deepest of each stays below 4 MiB (the tests allow a sixteenth of this), or 16 MiB in a build without optimisation.
const STACK_BYTES: usize = 64 << 20;

const NAME: &str = "chat_template";

pub struct RenderOptions {
    pub max_output_bytes: usize,
    pub now_unix_s: i64,
    /// A character that the writers of values never escape.
    pub sentinel: Option<char>,
}

pub struct Template {
    // Points into `source`, so it is declared, and dropped, before it.
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    _source: Box<str>,
}

impl Template {
    pub fn compile(source: &str) -> Outcome<Template> {
        on_deep_stack(|| Template::compile_here(source))
    }

    fn compile_here(source: &str) -> Outcome<Template> {
        let source = replace_generation_tags(source).into_boxed_str();
        // SAFETY: the text stands on the heap, is never changed, and lives as long as the Template that owns it.
        let text: &'static str = unsafe { &*(&*source as *const str) };
        check_depth(text, template_env::syntax())?;
        let tree = parse(text, NAME, template_env::syntax()).map_err(|e| Failure::corrupt(words(&e)))?;
        let mut generator = CodeGenerator::new(NAME, text);
        generator.compile_stmt(&harden(&tree)?);
        let (instructions, blocks) = generator.finish();
        Ok(Template { instructions, blocks, _source: source })
    }

    pub fn render(&self, context: &str, options: RenderOptions) -> Outcome<String> {
        on_deep_stack(|| self.render_here(context, options))
    }

    fn render_here(&self, context: &str, options: RenderOptions) -> Outcome<String> {
        let values: Value =
            serde_json::from_str(context).map_err(|e| Failure::invalid(format!("template variables: {e}")))?;
        let mut environment = template_env::environment(&options);
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_fuel(Some(FUEL + context.len() as u64 / INPUT_BYTES_PER_FUEL));
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        eval(&environment, &self.instructions, values, &self.blocks, &mut output, AutoEscape::None)
            .map(drop)
            .map_err(|e| render_failure(&e))?;
        drop(output);
        if text.len() > options.max_output_bytes {
            let words = format!(
                "the chat template wrote {} bytes, at most {} are accepted",
                text.len(),
                options.max_output_bytes
            );
            return Err(Failure::new(Code::ResourceExhausted, words));
        }
        Ok(text)
    }
}

/// Runs `work` on a thread with a deep stack, panics and all.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|scope| {
        let guarded = || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|p| Err(crate::panic_failure(p)));
        let thread = std::thread::Builder::new()
            .name("df-template".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, guarded)
            .map_err(|e| Failure::new(Code::Unavailable, format!("no thread to render on: {e}")))?;
        thread.join().unwrap_or_else(|p| Err(crate::panic_failure(p)))
    })
}

fn render_failure(error: &minijinja::Error) -> Failure {
    if error.kind() == ErrorKind::OutOfFuel {
        let words = format!("the chat template took more than its {FUEL} steps ({})", words(error));
        return Failure::new(Code::ResourceExhausted, words);
    }
    if error.to_string().contains("recursion limit") {
        return Failure::new(Code::ResourceExhausted, format!("the chat template nests too deeply ({})", words(error)));
    }
    Failure::invalid(format!("the chat template refused: {}", words(error)))
}

/// "detail (line 3)", without the name of the template and the causes' causes.
fn words(error: &minijinja::Error) -> String {
    let detail = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{} (line {line})", shorten(&detail)),
        None => shorten(&detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sixteenth of what templates get, a fourth where nothing is optimised.
    const TEST_STACK_BYTES: usize = if cfg!(debug_assertions) { STACK_BYTES / 4 } else { STACK_BYTES / 16 };

    /// Compiled, rendered and dropped on that small stack: to overflow it ends the process.
    fn render(source: &str, context: &str) -> Outcome<String> {
        std::thread::scope(|scope| {
            let work = || {
                let options = RenderOptions { max_output_bytes: 16 << 20, now_unix_s: 0, sentinel: None };
                Template::compile_here(source)?.render_here(context, options)
            };
            let thread = std::thread::Builder::new().stack_size(TEST_STACK_BYTES).spawn_scoped(scope, work);
            thread.expect("a thread").join().expect("no panic")
        })
    }

    fn is_refused(source: &str) -> bool {
        let answer = render(source, "{}");
        answer.is_err_and(|f| matches!(f.code, Code::InvalidArgument | Code::Corrupt | Code::ResourceExhausted))
    }

    #[test]
    fn the_deepest_sources_that_are_accepted_take_little_stack() {
        for (source, expected) in [
            (format!("{{{{ 0{} }}}}", "+1".repeat(390)), "390"),
            (format!("{{{{ 'a'{} | length }}}}", "|trim".repeat(390)), "1"),
            (format!("{{{{ 1{} }}}}", " if a else 1".repeat(95)), "1"),
            (format!("{{{{ {}a }}}}", "not ".repeat(390)), "False"),
            (format!("{{{{ {}{} | length }}}}", "[".repeat(70), "]".repeat(70)), "1"),
            (format!("{}x{}", "{% if not a %}".repeat(140), "{% endif %}".repeat(140)), "x"),
            (format!("{{% if a %}}{}{{% else %}}x{{% endif %}}", "{% elif a %}".repeat(390)), "x"),
            ("{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(9) }}".into(), "9876543210"),
            ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(30) }}x".into(), "x"),
            ("{% for n in [1] recursive %}{{ loop([1]) if loop.depth < 180 else 'x' }}{% endfor %}".into(), "x"),
        ] {
            let answer = render(&source, "{}").map_err(|f| f.message);
            assert_eq!(answer.as_deref(), Ok(expected), "{}", &source[..40.min(source.len())]);
        }
    }

    #[test]
    fn the_deepest_values_that_are_accepted_take_little_stack() {
        let deep = format!("{}1{}", "[".repeat(95), "]".repeat(95));
        let context = format!("{{\"x\": {deep}, \"y\": {deep}}}");
        for (source, expected) in [
            ("{{ x }}", deep.as_str()),
            ("{{ x | tojson }}", &deep),
            ("{{ x == y }}", "True"),
            ("{{ x in [y] }}", "True"),
            ("{{ [x, y] | unique | list | length }}", "1"),
            ("{{ [x, y] | sort == [y, x] }}", "True"),
            ("{% set ns = namespace(x=x) %}{% set ns.x = [ns.x] %}{{ ns.x | length }}", "1"),
        ] {
            assert_eq!(render(source, &context).map_err(|f| f.message).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn sources_without_end_are_refused() {
        for (open, part) in [
            ("{{ a", ".a"),
            ("{{ a", "|e"),
            ("{{ a", "[0]"),
            ("{{ a", "()"),
            ("{{ a", "~a"),
            ("{{ a", " if a else a"),
            ("{{ ", "not "),
            ("{{ ", "- "),
            ("{{ ", "("),
            ("{{ ", "{'a':"),
            ("{% if a %}", "{% elif a %}"),
            ("", "{% if a %}"),
            ("", "{% if a %}{% elif a %}{% elif a %}"),
            ("", "{% for a in b %}"),
        ] {
            let source = format!("{open}{}", part.repeat(250_000 / part.len()));
            assert!(is_refused(&source), "{open}{part}");
        }
    }

    /// Each statement, or turn of the loop, wraps the value once more.
    #[test]
    fn values_do_not_nest_without_end() {
        const WRAPS: [&str; 8] =
            ["[x]", "(x,)", "{'a': x}", "[[[[[[x]]]]]]", "x[:] + [x]", "[x] * 1", "[x] | reverse", "dict(a=x)"];
        for wrap in WRAPS {
            let source = format!("{{%set x={wrap}%}}").repeat(250_000 / (wrap.len() + 10));
            assert!(is_refused(&format!("{{% set x = [1] %}}{source}")), "{wrap}");
            let wrap = wrap.replace('x', "ns.x");
            let turns = format!("{{% for i in range(100000) %}}{{% set ns.x = {wrap} %}}{{% endfor %}}");
            assert!(is_refused(&format!("{{% set ns = namespace(x=[1]) %}}{turns}")), "{wrap}");
        }
    }

    /// What is computed on demand would ask through all that it was made from.
    #[test]
    fn lists_made_from_lists_do_not_lean_on_each_other() {
        const DERIVES: [&str; 8] =
            ["x[:]", "x[::-1]", "x * 1", "x | reverse", "x + []", "x | list", "x | map('abs')", "x | select"];
        for derive in DERIVES {
            let source = format!("{{%set x={derive}%}}").repeat(200_000 / (derive.len() + 10));
            let answer = render(&format!("{{% set x = [1, 2] %}}{source}{{{{ x | length }}}}"), "{}");
            assert_eq!(answer.map_err(|f| f.message).as_deref(), Ok("2"), "{derive}");
            let derive = derive.replace('x', "ns.x");
            let turns = format!("{{% for i in range(20000) %}}{{% set ns.x = {derive} %}}{{% endfor %}}");
            let answer = render(&format!("{{% set ns = namespace(x=[1, 2]) %}}{turns}{{{{ ns.x | length }}}}"), "{}");
            assert_eq!(answer.map_err(|f| f.message).as_deref(), Ok("2"), "{derive}");
        }
    }

    #[test]
    fn slices_are_lists() {
        for (source, expected) in [
            ("{{ x[1:] is sequence }} {{ x[1:] }} {{ x[::-1][0] }}", "True [2, 3] 3"),
            ("{% for i in x[:2] %}{{ loop.length }}{{ loop.last }} {% endfor %}", "2False 2True "),
            ("{{ (1, 2, 3)[1:] }} {{ (x[:1] + x)[1] }} {{ (x * 2) | length }}", "(2, 3) 1 6"),
            ("{% set (a, (b, c)) = [1, (2, 3)] %}{{ [a, b, c] }}", "[1, 2, 3]"),
            ("{% for a, b in [(1, 2)] %}{% with (c, d) = (3, 4) %}{{ [b, d] }}{% endwith %}{% endfor %}", "[2, 4]"),
        ] {
            let answer = render(source, "{\"x\": [1, 2, 3]}").map_err(|f| f.message);
            assert_eq!(answer.as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn a_value_may_cost_250_000_to_walk_through() {
        let sum = |n: usize| format!("{{{{ (range({n}) | list + range({n}) | list) | length }}}}");
        assert_eq!(render(&sum(90_000), "{}").map_err(|f| f.message).as_deref(), Ok("180000"));
        let triple = "{% set x = range(90000) | list %}{{ (x + x + x) | length }}";
        assert_eq!(render(triple, "{}").map_err(|f| f.code), Err(Code::ResourceExhausted));
        let tripled = "{% for i in range(9) %}{% set ns.x = [ns.x, ns.x, ns.x] %}{% endfor %}";
        assert!(is_refused(&format!("{{% set ns = namespace(x=[0] * 1000) %}}{tripled}")));
    }
}
