//! Chat templates: Jinja, rendered as `transformers` renders them.

use super::{Message, Tokenizer};
use crate::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, context};

/// Instructions that one rendering may take; a template that needs more does not end.
const FUEL: u64 = 50_000_000;

impl Tokenizer {
    /// The conversation as one text, ready for [`Tokenizer::encode`]. `add_generation_prompt` ends it
    /// where the assistant's turn begins.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the checkpoint has no template or the template refuses the messages.
    pub fn chat(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let Some(template) = &self.template else {
            let what = "this checkpoint has no chat template; use a plain prompt".to_owned();
            return Err(Error::Unsupported(what));
        };
        let refused = |e: minijinja::Error| Error::Unsupported(format!("chat template: {e:#}"));
        let env = environment().map_err(refused)?;
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let messages: Vec<_> = messages.iter().cloned().map(Serde).collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            bos_token => text(&self.specials.bos),
            eos_token => text(&self.specials.eos),
            unk_token => text(&self.specials.unk),
            pad_token => text(&self.specials.pad),
            tools => (),
            documents => (),
        };
        env.render_str(template, context).map_err(refused)
    }
}

fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |what: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, what))
    });
    Ok(env)
}
