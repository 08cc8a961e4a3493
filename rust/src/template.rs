//! A chat template: compiled once, rendered under limits on steps, data, depth and output.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

use minijinja::machinery::{eval, make_string_output, parse, CodeGenerator, Instructions};
use minijinja::{AutoEscape, ErrorKind, Value};

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
/// A source of 256 KiB can nest 130 000 deep before that is refused, a list 200 000 deep before the fuel is used up, and
/// each level takes stack when it is dropped. Address space only: pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 << 20;

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
        let source = replace_generation_tags(source).into_boxed_str();
        on_deep_stack(move || {
            // SAFETY: the text stands on the heap, is never changed, and lives as long as the Template that owns it.
            let text: &'static str = unsafe { &*(&*source as *const str) };
            let syntax = template_env::syntax();
            let tree = parse(text, NAME, syntax).map_err(|e| Failure::corrupt(words(&e)))?;
            let mut generator = CodeGenerator::new(NAME, text);
            generator.compile_stmt(&harden(&tree)?);
            let (instructions, blocks) = generator.finish();
            Ok(Template { instructions, blocks, _source: source })
        })
    }

    pub fn render(&self, context: &str, options: RenderOptions) -> Outcome<String> {
        on_deep_stack(|| {
            let values: Value =
                serde_json::from_str(context).map_err(|e| Failure::invalid(format!("template variables: {e}")))?;
            let mut environment = template_env::environment(&options);
            environment.set_recursion_limit(RECURSION_LIMIT);
            environment.set_fuel(Some(FUEL + context.len() as u64 / INPUT_BYTES_PER_FUEL));
            let mut text = String::new();
            eval(
                &environment,
                &self.instructions,
                values,
                &self.blocks,
                &mut make_string_output(&mut text),
                AutoEscape::None,
            )
            .map(drop)
            .map_err(|e| render_failure(&e))?;
            if text.len() > options.max_output_bytes {
                let words = format!(
                    "the chat template wrote {} bytes, at most {} are accepted",
                    text.len(),
                    options.max_output_bytes
                );
                return Err(Failure::new(Code::ResourceExhausted, words));
            }
            Ok(text)
        })
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
            .map_err(|e| Failure::new(Code::ResourceExhausted, format!("no thread to render on: {e}")))?;
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
