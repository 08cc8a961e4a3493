//! A chat template: compiled once, rendered under limits on steps, data, depth and output.

use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use minijinja::{Environment, ErrorKind, Value};

use crate::failure::{shorten, Code, Failure, Outcome};
use crate::generation::replace_generation_tags;
use crate::template_env;

/// One fuel pays for one instruction or 64 bytes of data: a prompt of a thousand messages takes about 50 000.
const FUEL: u64 = 1_000_000;
/// Long contents are copied a few times by an honest template; 16 bytes of data for each byte of input.
const INPUT_BYTES_PER_FUEL: u64 = 4;
/// Nested macros of real templates (JSON schemas) go about 20 deep.
const RECURSION_LIMIT: usize = 200;
/// A template can build a list nested as deep as its fuel allows, and each level takes stack when it is dropped or
/// compared. Address space only: pages that are not touched cost nothing.
const STACK_BYTES: usize = 1 << 30;

const NAME: &str = "chat_template";

pub struct RenderOptions {
    pub max_output_bytes: usize,
    pub now_unix_s: i64,
    /// A character that the writers of values never escape.
    pub sentinel: Option<char>,
}

pub struct Template {
    environment: Arc<Environment<'static>>,
}

impl Template {
    pub fn compile(source: &str) -> Outcome<Template> {
        let source = replace_generation_tags(source);
        on_deep_stack(move || {
            let mut environment = template_env::environment();
            environment.set_recursion_limit(RECURSION_LIMIT);
            environment.add_template_owned(NAME, source).map_err(|e| Failure::corrupt(words(&e)))?;
            Ok(Template { environment: Arc::new(environment) })
        })
    }

    pub fn render(&self, context: &str, options: RenderOptions) -> Outcome<String> {
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(FUEL + context.len() as u64 / INPUT_BYTES_PER_FUEL));
        let context = context.to_owned();
        on_deep_stack(move || {
            let context: Value =
                serde_json::from_str(&context).map_err(|e| Failure::invalid(format!("template variables: {e}")))?;
            template_env::bind(&mut environment, &options);
            let template = environment.get_template(NAME).map_err(|e| Failure::corrupt(words(&e)))?;
            let mut out = CappedWriter { text: vec![], max_bytes: options.max_output_bytes, full: false };
            let outcome = template.render_captured_to(context, &mut out).map(drop);
            if out.full {
                let words = format!("the chat template wrote more than {} bytes", options.max_output_bytes);
                return Err(Failure::new(Code::ResourceExhausted, words));
            }
            outcome.map_err(|e| render_failure(&e))?;
            String::from_utf8(out.text).map_err(|_| Failure::corrupt("the chat template split a character"))
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

struct CappedWriter {
    text: Vec<u8>,
    max_bytes: usize,
    full: bool,
}

impl Write for CappedWriter {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + part.len() > self.max_bytes {
            self.full = true;
            return Err(std::io::Error::other("output is full"));
        }
        self.text.extend_from_slice(part);
        Ok(part.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
