//! Tokenizers and chat templates, from both formats.

mod support;

use oasis_core::checkpoint::Checkpoint;
use oasis_core::checkpoint::source::Source;
use oasis_core::text::{Message, Tokenizer};
use support::gguf_writer::{Writer, small_model};
use support::{copy_of, fixture, smollm2};

fn from_gguf(w: &Writer) -> Result<Tokenizer, String> {
    Checkpoint::from_gguf(Source::memory("m.gguf", w.bytes())).map(|c| c.tokenizer).map_err(|e| e.to_string())
}

fn pieces(t: &Tokenizer, text: &str) -> Vec<String> {
    t.encode(text, false).unwrap().iter().map(|id| t.piece(*id).unwrap()).collect()
}

#[test]
fn bos_comes_first_only_where_the_checkpoint_says_so() {
    let llama = Checkpoint::open(&fixture("llama3-tiny")).unwrap().tokenizer;
    let plain = llama.encode("ab", false).unwrap();
    assert_eq!(llama.encode("ab", true).unwrap(), [&[1], &plain[..]].concat());
    assert_eq!(llama.encode("<bos>ab", true).unwrap(), [&[1], &plain[..]].concat(), "never twice");
    assert_eq!(llama.encode("", true).unwrap(), [1]);
    let qwen = Checkpoint::open(&fixture("qwen2-tiny")).unwrap().tokenizer;
    assert_eq!(qwen.encode("ab", true).unwrap(), plain);
    assert_eq!(qwen.bos(), None);
}

#[test]
fn text_survives_the_way_there_and_back_and_special_tokens_do_not_show() {
    let t = Checkpoint::open(&fixture("qwen3-tiny")).unwrap().tokenizer;
    let text = "fn main() { 1 + 2 }\n";
    let ids = t.encode(text, true).unwrap();
    assert_eq!((ids.len(), t.decode(&ids).unwrap()), (text.len(), text.to_owned()));
    let end = t.token_id("<|im_end|>").unwrap();
    assert_eq!(t.encode("<|im_end|>", false).unwrap(), [end]);
    assert_eq!(t.decode(&[&ids[..], &[end, 127]].concat()).unwrap(), text, "127 is a spare row");
    assert_eq!((t.vocab_size(), t.token_id("nothing")), (100, None));
    let again = Checkpoint::open(&fixture("qwen3-tiny")).unwrap().tokenizer;
    assert_eq!(t.digest(), again.digest());
    let other = Checkpoint::open(&fixture("llama3-tiny")).unwrap().tokenizer;
    assert_ne!(t.digest(), other.digest());
}

#[test]
fn padding_and_truncation_of_a_tokenizer_file_are_ignored() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("qwen2-tiny").join("tokenizer.json")).unwrap())
            .unwrap();
    json["truncation"] =
        serde_json::json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    let t = Tokenizer::from_json(json.to_string().as_bytes(), None).unwrap();
    assert_eq!(t.encode("abcdef", false).unwrap().len(), 6);
}

#[test]
fn a_chat_template_is_rendered_as_transformers_renders_it() {
    let t = Checkpoint::open(&fixture("qwen2-tiny")).unwrap().tokenizer;
    assert!(t.has_chat_template());
    let talk = [Message::new("user", "Hi"), Message::new("assistant", "Hello"), Message::new("user", "2+2?")];
    let text = t.chat(&talk, true).unwrap();
    assert_eq!(
        text,
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert!(!t.chat(&talk, false).unwrap().ends_with("assistant\n"));
}

#[test]
fn templates_may_use_what_real_ones_use() {
    // Constructs of the Llama 3 and Qwen 3 templates: namespaces, slices from the end, string methods,
    // tests for optional inputs, block trimming, refusals.
    let template = "{%- if tools is not none %}TOOLS{% endif %}\n\
        {%- if strftime_now is defined %}DATE{% endif %}\n\
        {%- set ns = namespace(last=-1) %}\n\
        {%- for m in messages[::-1] %}\n    {%- set index = messages|length - 1 - loop.index0 %}\n\
            {%- if m.role == 'user' and ns.last < 0 and not m.content.startswith('<tool>') %}\n\
                {%- set ns.last = index %}\n    {%- endif %}\n{%- endfor %}\n\
        {%- for m in messages %}\n    {%- if m.role == 'alien' %}\n        {{- raise_exception('no aliens') }}\n    {%- endif %}\n\
            {{- bos_token + m['role'] + ':' + m.content.split('</think>')[-1].lstrip('\\n') | trim }}\n\
            {%- if loop.index0 == ns.last %}*{% endif %}\n{%- endfor %}\n\
        {%- for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}\n";
    let copy = copy_of("llama3-tiny");
    std::fs::write(copy.path().join("chat_template.jinja"), template).unwrap();
    let t = Checkpoint::open(copy.path()).unwrap().tokenizer;
    let talk = [
        Message::new("assistant", "<think>hm</think>\n\nyes "),
        Message::new("user", "a"),
        Message::new("user", "<tool>b"),
    ];
    assert_eq!(t.chat(&talk, false).unwrap(), "<bos>assistant:yes<bos>user:a*<bos>user:<tool>b1");
    let error = t.chat(&[Message::new("alien", "?")], false).unwrap_err().to_string();
    assert!(error.contains("chat template") && error.contains("no aliens"), "{error}");
    std::fs::write(copy.path().join("chat_template.jinja"), "{% for %}").unwrap();
    assert!(Checkpoint::open(copy.path()).unwrap().tokenizer.chat(&talk, false).is_err());
    let forever = "{% for a in range(90000) %}{% for b in range(90000) %}{{ a }}{% endfor %}{% endfor %}";
    std::fs::write(copy.path().join("chat_template.jinja"), forever).unwrap();
    assert!(Checkpoint::open(copy.path()).unwrap().tokenizer.chat(&talk, false).is_err(), "it must end");
    let none =
        Tokenizer::from_json(&std::fs::read(fixture("llama3-tiny").join("tokenizer.json")).unwrap(), None);
    let error = none.unwrap().chat(&talk, false).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
}

#[test]
fn gguf_splitting_rules_differ_as_their_models_do() {
    let with = |pre: &str| from_gguf(&small_model("llama3-tiny", pre)).unwrap();
    let (smollm, qwen, llama) = (with("smollm"), with("qwen2"), with("llama-bpe"));
    for t in [&smollm, &qwen, &llama] {
        assert_eq!(pieces(t, "hello world\n"), ["hello", "Ġw", "o", "r", "l", "d", "Ċ"]);
        assert_eq!(pieces(t, "<tool>a</s>"), ["<tool>", "a", "</s>"]);
        assert_eq!(
            t.decode(&t.encode("hello <tool> world\n</s>", false).unwrap()).unwrap(),
            "hello <tool> world\n"
        );
    }
    assert_eq!(pieces(&llama, "12345"), ["123", "4", "5"], "threes");
    assert_eq!(pieces(&qwen, "12345"), ["1", "2", "3", "4", "5"]);
    assert_eq!(pieces(&smollm, "12345"), ["1", "2", "3", "4", "5"]);
    // Qwen2 composes accents first; a byte-level vocabulary without them drops both forms' bytes alike.
    assert_eq!(qwen.encode("e\u{301}", false).unwrap(), qwen.encode("\u{e9}", false).unwrap());
    assert_eq!(llama.bos(), llama.token_id("<s>"), "llama-bpe has a BOS unless the file says otherwise");
    assert_eq!((qwen.bos(), smollm.bos()), (None, None));
    let without = small_model("llama3-tiny", "llama-bpe").flag("tokenizer.ggml.add_bos_token", false);
    assert_eq!(from_gguf(&without).unwrap().bos(), None);
    assert_eq!(llama.chat(&[Message::new("user", "  hi ")], true).unwrap(), "hi</s>");
}

#[test]
fn gguf_tokenizers_that_are_not_known_or_damaged_are_refused() {
    let w = small_model("qwen2-tiny", "qwen2");
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    let many: Vec<String> = (0..129).map(|i| format!("t{i}")).collect();
    let twice: Vec<String> = ["a", "b", "a"].map(String::from).to_vec();
    let cases: Vec<(Writer, &str)> = vec![
        (w.clone().text(&key("pre"), "deepseek-llm"), "deepseek-llm"),
        (w.clone().text(&key("model"), "llama"), "tokenizer.ggml.model = llama"),
        (w.clone().without(&key("tokens")), "tokenizer.ggml.tokens` is missing"),
        (w.clone().u32(&key("merges"), 3), "merges` is no array"),
        (w.clone().texts(&key("tokens"), &many), "129 tokens"),
        (
            w.clone().texts(&key("tokens"), &twice).without(&key("token_type")).texts(&key("merges"), &[]),
            "tokens 0 and 2",
        ),
        (w.clone().i32s(&key("token_type"), &[1, 1]), "token_type"),
        (w.clone().texts(&key("merges"), &["he llo".into(), "xyz".into()]), "\"xyz\" is no pair"),
        (w.clone().texts(&key("merges"), &["no where".into()]), "merges do not fit"),
        (w.clone().flag(&key("add_bos_token"), true).without(&key("bos_token_id")), "add_bos_token"),
        (w.clone().text(&key("eos_token_id"), "end"), "eos_token_id"),
    ];
    for (w, wanted) in cases {
        let error = from_gguf(&w).unwrap_err();
        assert!(error.contains(wanted) && error.contains("m.gguf"), "{wanted}: {error}");
    }
}

#[test]
fn smollm2_gives_the_tokens_that_transformers_gives() {
    let Some(path) = smollm2() else { return };
    let t = Checkpoint::open(&path).unwrap().tokenizer;
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("smollm2").join("tokens.json")).unwrap()).unwrap();
    for case in record["hard"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(t.encode(text, true).unwrap(), ids, "{text:?}");
    }
    let text = record["text"].as_str().unwrap();
    let ids = t.encode(text, true).unwrap();
    let file = std::fs::read(fixture("smollm2").join("reference.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let wanted = file.tensor("input_ids").unwrap().data().to_vec();
    let wanted: Vec<u32> = wanted.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(ids, wanted);
    assert_eq!(t.decode(&ids).unwrap(), text);
    let messages: Vec<Message> = serde_json::from_value(record["chat"]["messages"].clone()).unwrap();
    assert_eq!(t.chat(&messages, true).unwrap(), record["chat"]["rendered"].as_str().unwrap());
}
