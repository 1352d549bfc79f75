//! The prompts of the paper's ten stages: each shares a beginning with an earlier one and goes on by itself.

use dalsegno_bench_index::workload::mix;

/// Part of a prompt's tokens that were there before, stage by stage.
pub const HIT_RATES: [f64; 10] = [0.2, 0.3, 0.5, 0.7, 0.5, 0.3, 0.1, 0.3, 0.5, 0.7];
/// Tokens of prompts, in turn.
pub const PROMPT_TOKENS: [u64; 3] = [4096, 8192, 16_384];

/// A prompt: its blocks, and how many of them another one had before.
pub struct Prompt {
    pub blocks: Vec<u64>,
    pub shared: usize,
}

/// All prompts so far, and those to come: the same ones in every run with this seed.
pub struct Workload {
    page_tokens: u64,
    seed: u64,
    prompts: Vec<Vec<u64>>,
    next_block: u64,
    asked: u64,
}

impl Workload {
    pub fn new(page_tokens: u64, seed: u64) -> Self {
        Self { page_tokens, seed, prompts: Vec::new(), next_block: seed << 40, asked: 0 }
    }

    fn random(&mut self) -> u64 {
        self.asked += 1;
        mix(self.asked.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03 ^ mix(self.seed))
    }

    /// The next prompt, of which that part was there before.
    pub fn next(&mut self, hit_rate: f64) -> Prompt {
        let tokens = PROMPT_TOKENS[self.prompts.len() % PROMPT_TOKENS.len()];
        let count = (tokens / self.page_tokens) as usize;
        let wanted = (count as f64 * hit_rate) as usize;
        let mut blocks = Vec::with_capacity(count);
        while wanted > 0 && !self.prompts.is_empty() {
            let donor = self.random() as usize % self.prompts.len();
            if self.prompts[donor].len() >= wanted {
                blocks.extend(&self.prompts[donor][..wanted]);
                break;
            }
        }
        let shared = blocks.len();
        let first = self.next_block;
        self.next_block += (count - shared) as u64;
        blocks.extend(first..self.next_block);
        self.prompts.push(blocks.clone());
        Prompt { blocks, shared }
    }
}
