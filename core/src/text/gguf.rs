//! A tokenizer from GGUF metadata (`tokenizer.ggml.*`).
//!
//! GGUF names the splitting rule (`tokenizer.ggml.pre`) and leaves its regular expression to the
//! reader. The three here are those of the models' own tokenizer.json.

use super::{Specials, Tokenizer};
use crate::checkpoint::Metadata;
use crate::checkpoint::config::unsupported;
use crate::checkpoint::gguf::{Array, Value};
use crate::{Error, Result};
use ahash::AHashMap;
use sha2::{Digest, Sha256};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// Words, digits one by one, punctuation with line ends, white space.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with digits in threes.
const LLAMA_BPE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Token kinds of `tokenizer.ggml.token_type` that matter here.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// A splitting rule and what goes with it.
struct Rule {
    first: PreTokenizerWrapper,
    /// The byte-level step splits by GPT-2's expression too.
    gpt2_split: bool,
    nfc: bool,
    /// A text that is a token as a whole is not merged from its bytes.
    whole_first: bool,
    /// What a missing `add_bos_token` means.
    add_bos: bool,
}

fn rule(meta: &Metadata<'_>) -> Result<Rule> {
    let split = |regex: &str| {
        let pattern = SplitPattern::Regex(regex.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        split.map(PreTokenizerWrapper::from).map_err(|e| Error::Invariant(format!("splitting rule: {e}")))
    };
    let plain = |first| Rule { first, gpt2_split: false, nfc: false, whole_first: false, add_bos: false };
    match meta.text("tokenizer.ggml.pre")? {
        Some("smollm") => Ok(Rule { gpt2_split: true, ..plain(Digits::new(true).into()) }),
        Some("qwen2") => Ok(Rule { nfc: true, ..plain(split(QWEN2)?) }),
        Some("llama-bpe") => Ok(Rule { whole_first: true, add_bos: true, ..plain(split(LLAMA_BPE)?) }),
        other => {
            let what = format!("tokenizer.ggml.pre = {}", other.unwrap_or("none"));
            let known = "smollm, qwen2, llama-bpe; or use the model's Hugging Face folder";
            Err(unsupported(meta.path(), what, known))
        }
    }
}

impl Tokenizer {
    /// From the metadata of a file whose embedding table has `rows` rows.
    pub(crate) fn from_gguf(meta: &Metadata<'_>, rows: usize) -> Result<Self> {
        let model = meta.text("tokenizer.ggml.model")?.unwrap_or("none");
        if model != "gpt2" {
            let what = format!("tokenizer.ggml.model = {model}");
            let known = "gpt2 (byte-level BPE); or use the model's Hugging Face folder";
            return Err(unsupported(meta.path(), what, known));
        }
        let rule = rule(meta)?;
        let bad = |what: String| Error::format(meta.path(), what);
        let [tokens, merges] = ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"].map(|key| array(meta, key));
        let (tokens, merges) = (tokens?, merges?);
        if tokens.count > rows as u64 || merges.count > tokens.count {
            let (t, m) = (tokens.count, merges.count);
            return Err(bad(format!("{t} tokens and {m} merges for an embedding table of {rows} rows")));
        }
        let (vocab, specials) = vocabulary(meta, tokens)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, pairs(meta, merges)?)
            .ignore_merges(rule.whole_first)
            .build()
            .map_err(|e| bad(format!("merges do not fit the tokens: {e}")))?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        let bytes = ByteLevel::new(false, true, rule.gpt2_split);
        inner.with_pre_tokenizer(Some(Sequence::new(vec![rule.first, bytes.into()])));
        inner.with_decoder(Some(bytes));
        if rule.nfc {
            inner.with_normalizer(Some(NFC)).map_err(|e| bad(e.to_string()))?;
        }
        inner.add_tokens(specials).map_err(|e| bad(format!("special tokens: {e}")))?;
        let mut hash = Sha256::new();
        hash.update(meta.text("tokenizer.ggml.pre")?.unwrap_or_default());
        for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"] {
            if let Some(Value::Array(array)) = meta.map.get(key) {
                hash.update(array.bytes(meta.source)?);
            }
        }
        let bos = meta.id("tokenizer.ggml.bos_token_id")?;
        let add = meta.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(rule.add_bos);
        if add && bos.is_none() {
            return Err(bad("tokenizer.ggml.add_bos_token is true, but there is no bos_token_id".into()));
        }
        let piece = |key: &str| -> Result<Option<String>> {
            Ok(meta.id(&format!("tokenizer.ggml.{key}_token_id"))?.and_then(|id| inner.id_to_token(id)))
        };
        let texts = Specials {
            bos: piece("bos")?,
            eos: piece("eos")?,
            unk: piece("unknown")?,
            pad: piece("padding")?,
        };
        let template = meta.text("tokenizer.chat_template")?.map(str::to_owned);
        Ok(Self::finish(inner, bos.filter(|_| add), texts, template, hash))
    }
}

fn array<'a>(meta: &Metadata<'a>, key: &str) -> Result<&'a Array> {
    match meta.map.get(key) {
        Some(Value::Array(array)) => Ok(array),
        Some(_) => Err(Error::format(meta.path(), format!("`{key}` is no array"))),
        None => {
            let what = format!("`{key}` is missing; use the model's Hugging Face folder");
            Err(Error::format(meta.path(), what))
        }
    }
}

/// Ids of all tokens, and the tokens that are cut out of a text before anything else.
fn vocabulary(meta: &Metadata<'_>, tokens: &Array) -> Result<(AHashMap<String, u32>, Vec<AddedToken>)> {
    let key = "tokenizer.ggml.token_type";
    let kinds = match meta.map.get(key) {
        Some(Value::Array(kinds)) if kinds.count == tokens.count => kinds.integers(meta.source, key)?,
        Some(_) => {
            let what = format!("`{key}` is no array of {} integers, one a token", tokens.count);
            return Err(Error::format(meta.path(), what));
        }
        None => Vec::new(),
    };
    let (mut vocab, mut specials) = (AHashMap::new(), Vec::new());
    let mut id = 0;
    tokens.strings(meta.source, "tokenizer.ggml.tokens", |token| {
        match kinds.get(id as usize).copied().unwrap_or(1) {
            CONTROL => specials.push(AddedToken::from(token.clone(), true)),
            USER_DEFINED => specials.push(AddedToken::from(token.clone(), false)),
            _ => {}
        }
        if let Some(first) = vocab.insert(token, id) {
            return Err(Error::format(meta.path(), format!("tokens {first} and {id} are the same")));
        }
        id += 1;
        Ok(())
    })?;
    Ok((vocab, specials))
}

fn pairs(meta: &Metadata<'_>, merges: &Array) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    merges.strings(meta.source, "tokenizer.ggml.merges", |merge| {
        let Some((a, b)) = merge.split_once(' ') else {
            return Err(Error::format(meta.path(), format!("merge {merge:?} is no pair")));
        };
        out.push((a.to_owned(), b.to_owned()));
        Ok(())
    })?;
    Ok(out)
}
