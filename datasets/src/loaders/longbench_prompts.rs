//! LongBench's tasks: metric, tokens of the answer, and a prompt in our own words.

use crate::scorers::longbench::LongBenchMetric as Metric;

/// One of the 21.
#[derive(Debug)]
pub(super) struct LongBenchTask {
    /// Its name in the files' `dataset`.
    pub name: &'static str,
    pub metric: Metric,
    /// Tokens of the answer as published.
    pub answer: usize,
    /// The prompt, with `{context}` and `{input}`.
    pub prompt: &'static str,
    /// Examples make up the context; the benchmark gives it without a chat template.
    pub few_shot: bool,
}

const fn task(name: &'static str, metric: Metric, answer: usize, prompt: &'static str) -> LongBenchTask {
    LongBenchTask { name, metric, answer, prompt, few_shot: false }
}

const fn few_shot(name: &'static str, metric: Metric, answer: usize, prompt: &'static str) -> LongBenchTask {
    LongBenchTask { name, metric, answer, prompt, few_shot: true }
}

const PASSAGES: &str = "Answer the question by these passages. Give the answer only, without any other words.\n\n\
                        {context}\n\nQuestion: {input}\nAnswer:";
const TEXT: &str = "Read this text and answer the question on it. Give the answer only, without any other words.\n\n\
                    {context}\n\nQuestion: {input}\nAnswer:";

/// All tasks.
pub(super) static LONGBENCH: [LongBenchTask; 21] = [
    task(
        "narrativeqa",
        Metric::QaF1,
        128,
        "Read this story and answer the question on it in as few words as you can, a single phrase if possible.\n\n\
         {context}\n\nQuestion: {input}\nAnswer:",
    ),
    task(
        "qasper",
        Metric::QaF1,
        128,
        "Read this scientific article and answer the question on it in as few words as you can. If the article does not \
         answer it, write \"unanswerable\". Answer a yes/no question with \"yes\", \"no\" or \"unanswerable\".\n\n\
         {context}\n\nQuestion: {input}\nAnswer:",
    ),
    task("multifieldqa_en", Metric::QaF1, 64, TEXT),
    task(
        "multifieldqa_zh",
        Metric::CharacterF1,
        64,
        "请根据下面的文章回答问题，只写出答案。\n\n{context}\n\n问题：{input}\n答案：",
    ),
    task("hotpotqa", Metric::QaF1, 32, PASSAGES),
    task("2wikimqa", Metric::QaF1, 32, PASSAGES),
    task("musique", Metric::QaF1, 32, PASSAGES),
    task(
        "dureader",
        Metric::CharacterRouge,
        128,
        "请根据下面的多篇文章回答问题。\n\n{context}\n\n问题：{input}\n回答：",
    ),
    task(
        "gov_report",
        Metric::Rouge,
        512,
        "Summarise this report of a government agency on one page.\n\n{context}\n\nSummary:",
    ),
    task(
        "qmsum",
        Metric::Rouge,
        512,
        "Read the transcript of this meeting and answer the query on it in one or more sentences.\n\n{context}\n\n\
         Query: {input}\nAnswer:",
    ),
    task(
        "multi_news",
        Metric::Rouge,
        512,
        "Summarise these news articles on one page.\n\n{context}\n\nSummary:",
    ),
    task("vcsum", Metric::CharacterRouge, 512, "请为下面的会议记录写一段总结。\n\n{context}\n\n会议总结："),
    few_shot(
        "trec",
        Metric::Classification,
        64,
        "Say which type of question the last one is, as the examples do.\n\n{context}\n{input}",
    ),
    few_shot(
        "triviaqa",
        Metric::QaF1FirstLine,
        32,
        "Answer the last question by its passage, as the examples do. Give the answer only.\n\n{context}\n\n{input}",
    ),
    few_shot(
        "samsum",
        Metric::RougeFirstLine,
        128,
        "Summarise the last dialogue in a few short sentences, as the examples do.\n\n{context}\n\n{input}",
    ),
    few_shot(
        "lsht",
        Metric::Classification,
        64,
        "请像示例那样判断最后一条新闻的类别。\n\n{context}\n{input}",
    ),
    task(
        "passage_count",
        Metric::Count,
        32,
        "Some of these paragraphs come more than once. Count how many different paragraphs there are, and give that number \
         only.\n\n{context}\n\nNumber of different paragraphs:",
    ),
    task(
        "passage_retrieval_en",
        Metric::Retrieval,
        32,
        "One of these paragraphs is what the summary below sums up. Find out which.\n\n{context}\n\nSummary: {input}\n\n\
         Give the paragraph's name only, such as \"Paragraph 1\".\nAnswer:",
    ),
    task(
        "passage_retrieval_zh",
        Metric::RetrievalChinese,
        32,
        "下面有若干段落和一个摘要，请判断摘要概括的是哪一段。\n\n{context}\n\n摘要：{input}\n\n只写出段落的编号，格式如“段落1”。\n答案：",
    ),
    few_shot("lcc", Metric::CodeSimilarity, 64, "Continue this code with its next line.\n{context}"),
    few_shot(
        "repobench-p",
        Metric::CodeSimilarity,
        64,
        "Continue this code with its next line.\n{context}{input}",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_has_its_context_once() {
        for task in &LONGBENCH {
            assert_eq!(task.prompt.matches("{context}").count(), 1, "{}", task.name);
            assert!(task.prompt.matches("{input}").count() <= 1, "{}", task.name);
            assert!(task.answer >= 32);
        }
    }
}
