//! The rows of a benchmark, in each form.

use serde::{Serialize, Serializer};

use crate::args::BenchOutput;
use crate::device::DeviceReport;
use crate::output;
use crate::streaming::StreamReport;

/// Tokens per second over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Mean.
    pub avg_ts: f64,
    /// Standard deviation of the sample; 0 for a single run.
    pub stddev_ts: f64,
}

impl Speed {
    /// Mean and deviation of `speeds`, of which there is at least one.
    pub fn of(speeds: &[f64]) -> Self {
        let n = speeds.len() as f64;
        let avg_ts = speeds.iter().sum::<f64>() / n;
        let squares: f64 = speeds.iter().map(|speed| (speed - avg_ts).powi(2)).sum();
        let stddev_ts = if speeds.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Self { avg_ts, stddev_ts }
    }
}

/// One test of one model.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the model's file.
    pub model: String,
    /// Bytes of its weights.
    pub size_bytes: u64,
    /// `pp512` or `tg128`.
    pub test: String,
    /// Tokens per second.
    #[serde(flatten)]
    pub speed: Speed,
    /// Compute threads.
    pub threads: usize,
    /// Where it was computed.
    #[serde(flatten)]
    pub device: DeviceReport,
    /// `exact` or `sparse`.
    pub mode: &'static str,
    /// Fraction of neurons to compute.
    pub keep: f64,
    /// Fraction of the MLPs' bytes that was computed with in sparse passes; only in sparse mode.
    pub computed_fraction: Option<f64>,
    /// Fraction of neurons that was chosen, and whose gates and ups were computed.
    pub chosen_fraction: Option<f64>,
    /// Fraction of chunks that had a chosen neuron.
    pub touched_fraction: Option<f64>,
    /// The most anonymous memory seen.
    pub peak_rss_bytes: Option<u64>,
    /// How fast a plain read of the weights was, in 10⁹ bytes per second; not under a budget.
    #[serde(serialize_with = "three_decimals")]
    pub read_gb_per_s: Option<f64>,
    /// Time of a token ÷ time of such a read; for decoding only.
    pub floor_ratio: Option<f64>,
    /// When layers are ranked, if sparse tokens are streamed.
    pub policy: Option<String>,
    /// Which chunks stay in memory, under a budget.
    pub cache: Option<&'static str>,
    /// Perplexity of the text that was decoded.
    pub ppl: Option<f64>,
    /// Mean divergence of the predictions from those of `--compare-logits`, in nats.
    pub kl: Option<f64>,
    /// By what factor the perplexity is higher than theirs, less 1, and the standard error of that.
    pub ppl_rise: Option<f64>,
    pub ppl_rise_stderr: Option<f64>,
    /// Fraction of predictions of which both find the same token the likeliest.
    pub top1_agreement: Option<f64>,
    /// Milliseconds of a token: what half of them do not exceed, and what 99 % do not.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// The budget and what was read.
    #[serde(flatten)]
    pub stream: StreamReport,
}

fn three_decimals<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    value.map(|value| (value * 1e3).round() / 1e3).serialize(serializer)
}

/// All rows as text.
pub fn print(rows: &[Row], form: BenchOutput) -> anyhow::Result<String> {
    Ok(match form {
        BenchOutput::Md => markdown(rows) + &predictions(rows),
        BenchOutput::Json => serde_json::to_string_pretty(rows)? + "\n",
        BenchOutput::Jsonl => {
            let lines = rows.iter().map(|row| Ok(serde_json::to_string(row)? + "\n"));
            lines.collect::<anyhow::Result<String>>()?
        }
        BenchOutput::Csv => csv(rows)?,
    })
}

fn markdown(rows: &[Row]) -> String {
    if rows.iter().any(|row| row.stream.budget_bytes.is_some()) {
        return streamed_markdown(rows);
    }
    let titles = ["model", "size", "threads", "device", "test", "t/s", "read GB/s", "floor"];
    let mut out = format!("| {} |\n", titles.join(" | "));
    out += "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n";
    for row in rows {
        let read = row.read_gb_per_s.unwrap_or(0.0);
        let floor = row.floor_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let Speed { avg_ts, stddev_ts } = row.speed;
        out += &format!(
            "| {} | {} | {} | {} | {} | {avg_ts:.2} ± {stddev_ts:.2} | {read:.1} | {floor} |\n",
            row.model.replace('|', "\\|"),
            output::bytes(row.size_bytes),
            row.threads,
            row.device.device,
            row.test,
        );
    }
    out
}

/// What matters under a budget.
fn streamed_markdown(rows: &[Row]) -> String {
    let titles = [
        "model",
        "budget",
        "policy",
        "cache",
        "test",
        "t/s",
        "MB/token",
        "stall ms/token",
        "disk MB/s",
    ];
    let mut out = format!("| {} |\n", titles.join(" | "));
    out += "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |\n";
    for row in rows {
        let number = |value: Option<f64>, scale: f64, decimals: usize| {
            value.map_or("-".into(), |value| format!("{:.decimals$}", value * scale))
        };
        let Speed { avg_ts, stddev_ts } = row.speed;
        out += &format!(
            "| {} | {} | {} | {} | {} | {avg_ts:.2} ± {stddev_ts:.2} | {} | {} | {} |\n",
            row.model.replace('|', "\\|"),
            row.stream.budget_bytes.map_or("-".into(), output::bytes),
            row.policy.as_deref().unwrap_or("-"),
            row.cache.unwrap_or("-"),
            row.test,
            number(row.stream.bytes_per_token, 1e-6, 1),
            number(row.stream.stall_ms_per_token, 1.0, 1),
            number(row.stream.disk_mb_per_s, 1.0, 0),
        );
    }
    out
}

/// How well a text was predicted; nothing if there was none.
fn predictions(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let mut line = format!("\n{}, {}: perplexity {:.2}", row.model, row.test, row.ppl?);
        if let (Some(kl), Some(rise), Some(stderr), Some(same)) =
            (row.kl, row.ppl_rise, row.ppl_rise_stderr, row.top1_agreement)
        {
            line += &format!(
                ", {:+.1} ± {:.1} % beside the logits compared with; divergence {kl:.3}, the same likeliest token in {:.0} %",
                100.0 * rise,
                100.0 * stderr,
                100.0 * same
            );
        }
        Some(line + "\n")
    };
    rows.iter().filter_map(line).collect()
}

/// The same keys as JSON has, so that no form can know a field that another does not.
fn csv(rows: &[Row]) -> anyhow::Result<String> {
    let mut out = String::new();
    for (idx, row) in rows.iter().enumerate() {
        let serde_json::Value::Object(fields) = serde_json::to_value(row)? else { continue };
        if idx == 0 {
            let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
            out += &(keys.join(",") + "\n");
        }
        let cells: Vec<String> = fields.values().map(cell).collect();
        out += &(cells.join(",") + "\n");
    }
    Ok(out)
}

fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let decode = Row {
            model: "tiny, \"q4\"".into(),
            size_bytes: 98_362_432,
            test: "tg128".into(),
            speed: Speed { avg_ts: 61.5, stddev_ts: 0.25 },
            threads: 2,
            device: DeviceReport::cpu(),
            mode: "exact",
            keep: 1.0,
            computed_fraction: None,
            chosen_fraction: None,
            touched_fraction: None,
            peak_rss_bytes: Some(1 << 20),
            read_gb_per_s: Some(12.3456),
            floor_ratio: Some(2.0),
            policy: None,
            cache: None,
            ppl: None,
            kl: None,
            ppl_rise: None,
            ppl_rise_stderr: None,
            top1_agreement: None,
            p50_ms: None,
            p99_ms: None,
            stream: StreamReport::default(),
        };
        let prompt = Row { test: "pp512".into(), floor_ratio: None, ..decode.clone() };
        vec![prompt, decode]
    }

    #[test]
    fn speed_has_the_deviation_of_the_sample() {
        let speed = Speed::of(&[1.0, 2.0, 6.0]);
        assert_eq!((speed.avg_ts, speed.stddev_ts), (3.0, 7f64.sqrt()));
        assert_eq!(Speed::of(&[4.0]), Speed { avg_ts: 4.0, stddev_ts: 0.0 });
    }

    #[test]
    fn markdown_is_a_table() {
        insta::assert_snapshot!(print(&rows(), BenchOutput::Md).unwrap(), @r#"
        | model | size | threads | device | test | t/s | read GB/s | floor |
        | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |
        | tiny, "q4" | 93.8 MiB | 2 | cpu | pp512 | 61.50 ± 0.25 | 12.3 | - |
        | tiny, "q4" | 93.8 MiB | 2 | cpu | tg128 | 61.50 ± 0.25 | 12.3 | 2.00 |
        "#);
    }

    #[test]
    fn what_was_predicted_is_said_below() {
        let [_, mut row] = <[Row; 2]>::try_from(rows()).unwrap();
        assert_eq!(predictions(&[row.clone()]), "");
        row.ppl = Some(9.183);
        assert_eq!(predictions(&[row.clone()]), "\ntiny, \"q4\", tg128: perplexity 9.18\n");
        (row.kl, row.ppl_rise, row.ppl_rise_stderr) = (Some(0.2554), Some(0.253), Some(0.051));
        row.top1_agreement = Some(0.75);
        assert_eq!(
            predictions(&[row]),
            "\ntiny, \"q4\", tg128: perplexity 9.18, +25.3 ± 5.1 % beside the logits compared with; divergence 0.255, the same likeliest token in 75 %\n"
        );
    }

    #[test]
    fn csv_quotes_and_leaves_unknown_cells_empty() {
        insta::assert_snapshot!(print(&rows(), BenchOutput::Csv).unwrap(), @r#"
        model,size_bytes,test,avg_ts,stddev_ts,threads,device,gpu,gpu_control,gpu_bytes,gpu_notice,mode,keep,computed_fraction,chosen_fraction,touched_fraction,peak_rss_bytes,read_gb_per_s,floor_ratio,policy,cache,ppl,kl,ppl_rise,ppl_rise_stderr,top1_agreement,p50_ms,p99_ms,budget_bytes,planned_bytes,bytes_read,bytes_per_token,stall_miss_ratio,demand_miss_ratio,wasted_ratio,refinements_per_token,dropped_share,stall_ms_per_token,disk_mb_per_s,read_kib,io_depth,io,cache_bytes,chunk_bytes,layer_chunks,by_worth,price,horizon,corrects,read_us,read_us_per_kib,ranks_per_token,rank_us,choose_us,stages_per_token,stage_us,stage_gb_per_s,chunks_per_token,chunk_us,between_us,pass_ms,wait_ms
        "tiny, ""q4""",98362432,pp512,61.5,0.25,2,cpu,,,,,exact,1.0,,,,1048576,12.346,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,
        "tiny, ""q4""",98362432,tg128,61.5,0.25,2,cpu,,,,,exact,1.0,,,,1048576,12.346,2.0,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,
        "#);
    }

    #[test]
    fn json_lines_have_the_documented_keys() {
        let text = print(&rows(), BenchOutput::Jsonl).unwrap();
        assert_eq!(text.lines().count(), 2);
        insta::assert_snapshot!(text.lines().next().unwrap(), @r#"{"model":"tiny, \"q4\"","size_bytes":98362432,"test":"pp512","avg_ts":61.5,"stddev_ts":0.25,"threads":2,"device":"cpu","gpu":null,"gpu_control":null,"gpu_bytes":null,"gpu_notice":null,"mode":"exact","keep":1.0,"computed_fraction":null,"chosen_fraction":null,"touched_fraction":null,"peak_rss_bytes":1048576,"read_gb_per_s":12.346,"floor_ratio":null,"policy":null,"cache":null,"ppl":null,"kl":null,"ppl_rise":null,"ppl_rise_stderr":null,"top1_agreement":null,"p50_ms":null,"p99_ms":null,"budget_bytes":null,"planned_bytes":null,"bytes_read":null,"bytes_per_token":null,"stall_miss_ratio":null,"demand_miss_ratio":null,"wasted_ratio":null,"refinements_per_token":null,"dropped_share":null,"stall_ms_per_token":null,"disk_mb_per_s":null,"read_kib":null,"io_depth":null,"io":null,"cache_bytes":null,"chunk_bytes":null,"layer_chunks":null,"by_worth":null,"price":null,"horizon":null,"corrects":null,"read_us":null,"read_us_per_kib":null,"ranks_per_token":null,"rank_us":null,"choose_us":null,"stages_per_token":null,"stage_us":null,"stage_gb_per_s":null,"chunks_per_token":null,"chunk_us":null,"between_us":null,"pass_ms":null,"wait_ms":null}"#);
    }
}
