//! The bundled model, as bytes inside the program.

/// The files of a bundled model.
#[derive(Debug, Clone, Copy)]
pub struct Bundle {
    /// `config.json`, as of a Hugging Face folder.
    pub config: &'static [u8],
    /// `model.safetensors`, bf16.
    pub weights: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
    /// `generation_config.json`: the end-of-text token.
    pub generation_config: &'static [u8],
    /// Configuration of the EAGLE-3 draft head.
    pub eagle3_config: &'static [u8],
    /// Weights of the EAGLE-3 draft head, bf16.
    pub eagle3_weights: &'static [u8],
}

/// `nano`: a Llama-type model of 5.3 million parameters that recalls facts from up to 8,192 tokens, and its
/// EAGLE-3 draft head. `bundled/nano/README.md` describes it.
pub fn nano() -> Bundle {
    Bundle {
        config: include_bytes!("../bundled/nano/config.json"),
        weights: include_bytes!("../bundled/nano/model.safetensors"),
        tokenizer: include_bytes!("../bundled/nano/tokenizer.json"),
        tokenizer_config: include_bytes!("../bundled/nano/tokenizer_config.json"),
        generation_config: include_bytes!("../bundled/nano/generation_config.json"),
        eagle3_config: include_bytes!("../bundled/nano/eagle3_config.json"),
        eagle3_weights: include_bytes!("../bundled/nano/eagle3.safetensors"),
    }
}
