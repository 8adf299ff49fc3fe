//! Names of the metrics that reports know by name, with their definitions.

/// Task score.
pub const ACCURACY: &str = "accuracy";
/// Agreement with the true set of the same summary.
pub const AGREEMENT: &str = "topk_agreement";
/// The same under selections that a right draft had ranked.
pub const AGREEMENT_RIGHT: &str = "topk_agreement_draft_right";
/// The same under selections that a wrong draft had ranked.
pub const AGREEMENT_WRONG: &str = "topk_agreement_draft_wrong";
/// Agreement with the set of the largest exact mass.
pub const RECALL: &str = "topk_recall_exact";
/// Share of attention mass on what is attended.
pub const MASS: &str = "mass_recall";
/// Error of the attention output.
pub const OUTPUT_ERROR: &str = "output_error";
/// KL divergence from dense.
pub const KL: &str = "kl";
/// Positions with dense's most probable token.
pub const TOP1: &str = "top1_agreement";
/// Perplexity difference.
pub const PPL_DELTA: &str = "ppl_delta";
/// Host-to-device traffic.
pub const BYTES: &str = "bytes_h2d";
/// Wanted and resident.
pub const HIT_RATE: &str = "hit_rate";
/// Wanted and left out.
pub const DROPPED: &str = "dropped";
/// Fetched in vain.
pub const WASTED: &str = "wasted_fetches";
/// Drafts whose first token was right.
pub const DRAFT_RIGHT: &str = "draft_right";
/// Tokens a draft yields.
pub const ACCEPTANCE: &str = "acceptance_length";

/// What each figure of a report means: (name, column, definition), in the order of the tables.
pub const DEFINITIONS: &[(&str, &str, &str)] = &[
    (
        ACCURACY,
        "accuracy",
        "score of the answers; ± is one standard error over samples, clustered by document; the mean weighs all tasks alike",
    ),
    (
        KL,
        "KL",
        "Kullback-Leibler divergence of the next-token distribution from that of dense decoding on the same prefix, nats, mean over positions",
    ),
    (TOP1, "top-1", "share of positions at which the most probable token is that of dense decoding"),
    (PPL_DELTA, "Δ ppl", "perplexity of the text minus that of dense decoding"),
    (
        AGREEMENT,
        "agreement",
        "|P ∩ T| / min(K, n): P is what the policy selected for a step, T the K best blocks by the same summary with the step's true query; pinned blocks excluded; mean over steps, heads, samples, then layers",
    ),
    ("", "min layer", "the layer with the lowest agreement"),
    (
        "",
        "draft right, wrong",
        "agreement of the steps whose selection was ranked by a draft row that proved right, or wrong",
    ),
    (
        RECALL,
        "exact recall",
        "the same as agreement against the K blocks with the largest exact attention mass, summed over the query heads of the group",
    ),
    (
        MASS,
        "mass recall",
        "share of the true attention mass that falls on attended tokens (resident blocks and tail)",
    ),
    (OUTPUT_ERROR, "output error", "‖sparse − dense‖₂ / ‖dense‖₂ of the attention output, mean over layers"),
    (
        BYTES,
        "moved a step",
        "bytes copied from the host store to the device in one decode step of one sequence, all layers and KV heads",
    ),
    (HIT_RATE, "hit rate", "share of the wanted blocks that were resident already"),
    (
        DROPPED,
        "dropped a step",
        "blocks that were wanted and not resident, and were not fetched because the cap bound",
    ),
    (
        WASTED,
        "wasted a step",
        "fetched blocks that left without ever having had the mean block's share of attention mass",
    ),
    (DRAFT_RIGHT, "drafts right", "share of the drafted steps whose first draft token was the one that came"),
    (
        ACCEPTANCE,
        "acceptance",
        "1 + accepted draft tokens / drafts: tokens that a verified draft yields a step",
    ),
];

/// What the times of a report are, in a sentence each.
pub const TIMES: &str = "Of cells without audit, each decode's first step left out. \
    ttft: time to first token, the prefill of a prompt that was decoded alone or in a batch, queueing not counted (the first \
    token is drawn from the prompt's last logits). tpot: time per output token of a sequence, seconds of its steps over the \
    tokens that they emitted; a step that accepts drafts emits several. step: seconds of a step of the whole batch, which is \
    the time between tokens where a step emits one. decode tok/s: emitted tokens of all sequences over the seconds of their \
    batch's steps. prefill tok/s: tokens of a prompt over the seconds of its prefill. exposed transfer: the part of a step \
    that waited for copies. p50, p90, p99 are percentiles over steps, samples for ttft and tpot.";
