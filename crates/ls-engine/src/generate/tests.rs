use super::*;
use crate::SampleParams;

/// After token t comes t + 1; `capacity` tokens fit.
struct Counter {
    seen: Vec<u32>,
    capacity: usize,
    logits: Vec<f32>,
}

const VOCAB: usize = 64;
const END: u32 = 60;

impl Counter {
    fn new(capacity: usize) -> Self {
        Self { seen: Vec::new(), capacity, logits: vec![0.0; VOCAB + 1] }
    }

    fn answer(&mut self) -> &[f32] {
        self.logits.fill(0.0);
        // A row without a token, and likelier than all that have one.
        self.logits[VOCAB] = 9.0;
        self.logits[(self.seen[self.seen.len() - 1] as usize + 1) % VOCAB] = 5.0;
        &self.logits
    }
}

impl Decoder for Counter {
    fn position(&self) -> usize {
        self.seen.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        assert!(!tokens.is_empty() && tokens.len() <= PROMPT_STEP);
        self.seen.extend_from_slice(tokens);
        Ok(self.answer())
    }

    fn decode(&mut self, token: u32) -> Result<&[f32], EngineError> {
        self.seen.push(token);
        Ok(self.answer())
    }
}

/// Token t is the letter after 'a' by t % 26; odd tokens are shown with the one that follows.
#[derive(Default)]
struct Letters {
    pending: String,
    text: String,
}

impl Detokenizer for Letters {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn ends_text(&self, token: u32) -> bool {
        token == END
    }

    fn push(&mut self, token: u32) -> Result<&str, TokenizerError> {
        self.pending.push(char::from(b'a' + (token % 26) as u8));
        self.text.clear();
        if token.is_multiple_of(2) {
            self.text.push_str(&self.pending);
            self.pending.clear();
        }
        Ok(&self.text)
    }

    fn finish(&mut self) -> &str {
        self.text = std::mem::take(&mut self.pending);
        &self.text
    }
}

struct Got {
    generation: Generation,
    events: Vec<String>,
    seen: Vec<u32>,
}

fn generate_with(
    capacity: usize,
    prompt: &[u32],
    options: &GenerateOptions,
    break_after: usize,
) -> Result<Got, GenerateError> {
    let mut model = Counter::new(capacity);
    let mut sampler = Sampler::new(SampleParams::greedy()).unwrap();
    let mut events = Vec::new();
    let mut on_event = |event: Event| {
        match event {
            Event::Text(text) => events.push(text.to_string()),
            Event::Prompt { done, total } => events.push(format!("{done}/{total}")),
        }
        if events.len() > break_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let generation =
        run(&mut model, &mut Letters::default(), prompt, &mut sampler, options, &mut on_event)?;
    Ok(Got { generation, events, seen: model.seen })
}

fn generate_for(capacity: usize, prompt: &[u32], options: &GenerateOptions) -> Got {
    generate_with(capacity, prompt, options, usize::MAX).unwrap()
}

fn at_most(n: usize) -> GenerateOptions<'static> {
    GenerateOptions { max_tokens: Some(n), ..Default::default() }
}

#[test]
fn text_comes_in_whole_pieces_and_the_last_token_is_not_computed() {
    let got = generate_for(100, &[7, 9], &at_most(4));
    assert_eq!(got.generation.tokens, [10, 11, 12, 13]);
    assert_eq!(got.generation.text, "klmn");
    assert_eq!(got.events, ["0/2", "k", "lm", "n"]);
    assert_eq!(got.generation.finish_reason, FinishReason::MaxTokens);
    assert_eq!(got.seen, [7, 9, 10, 11, 12]);
}

#[test]
fn metrics_count_the_work() {
    let metrics = generate_for(100, &[7, 9], &at_most(4)).generation.metrics;
    assert_eq!((metrics.prompt_tokens, metrics.decode_steps), (2, 3));
    let first = metrics.first_token_time.unwrap();
    assert!(first >= metrics.prompt_time && metrics.tok_per_s().is_some());
}

#[test]
fn the_end_token_ends_and_is_not_part_of_the_answer() {
    let got = generate_for(100, &[END - 3], &GenerateOptions::default());
    assert_eq!(got.generation.tokens, [END - 2, END - 1]);
    assert_eq!(got.generation.text, "gh");
    assert_eq!(got.generation.finish_reason, FinishReason::EndOfText);
}

#[test]
fn a_full_context_ends_with_its_own_reason() {
    let got = generate_for(5, &[0, 1], &GenerateOptions::default());
    assert_eq!(got.generation.finish_reason, FinishReason::ContextFull);
    assert_eq!(got.generation.tokens, [2, 3, 4, 5]);
    assert_eq!(got.seen.len(), 5);
    let exact = generate_for(5, &[0, 1, 2, 3, 4], &at_most(1));
    assert_eq!(exact.generation.finish_reason, FinishReason::MaxTokens);
}

#[test]
fn a_stop_string_across_tokens_ends_and_is_left_out() {
    let options = GenerateOptions { stop: vec!["zz".into(), "mno".into()], ..at_most(40) };
    let got = generate_for(100, &[9], &options);
    assert_eq!(got.generation.text, "kl");
    assert_eq!(got.generation.finish_reason, FinishReason::StopString);
    assert_eq!(got.events, ["0/1", "k", "l"]);
}

#[test]
fn what_a_stop_string_held_back_comes_when_the_tokens_are_used_up() {
    let options = GenerateOptions { stop: vec!["mnx".into()], ..at_most(4) };
    assert_eq!(generate_for(100, &[9], &options).generation.text, "klmn");
}

#[test]
fn no_tokens_asked_for_computes_the_prompt_alone() {
    let got = generate_for(100, &[1, 2, 3], &at_most(0));
    assert_eq!((got.generation.tokens.len(), got.seen.len()), (0, 3));
    assert_eq!(got.generation.metrics.first_token_time, None);
}

#[test]
fn the_cancel_flag_stops_before_the_prompt_and_after_a_token() {
    let flag = AtomicBool::new(true);
    let options = GenerateOptions { cancel: Some(&flag), ..at_most(9) };
    let got = generate_for(100, &[1], &options);
    assert_eq!(got.generation.finish_reason, FinishReason::Cancelled);
    assert!(got.seen.is_empty());

    let broken = generate_with(100, &[9], &at_most(9), 1).unwrap();
    assert_eq!(broken.generation.finish_reason, FinishReason::Cancelled);
    assert_eq!(broken.generation.text, "k");
    assert_eq!(broken.seen, [9]);
}

#[test]
fn a_long_prompt_reports_its_progress_and_can_be_broken_off() {
    let prompt = vec![5; PROMPT_STEP * 2 + 1];
    let got = generate_for(5000, &prompt, &at_most(1));
    assert_eq!(got.events[..3], ["0/1025", "512/1025", "1024/1025"]);
    assert_eq!(got.generation.tokens, [6]);
    let broken = generate_with(5000, &prompt, &at_most(1), 1).unwrap();
    assert_eq!(broken.seen.len(), PROMPT_STEP);
}

#[test]
fn prompts_that_cannot_be_continued_are_errors() {
    let error = generate_with(3, &[1, 2, 3, 4], &at_most(1), 9).err().unwrap();
    assert!(matches!(error, GenerateError::PromptTooLong { tokens: 4, room: 3, capacity: 3 }));
    let error = generate_with(3, &[], &at_most(1), 9).err().unwrap();
    assert!(matches!(error, GenerateError::EmptyPrompt));
}
