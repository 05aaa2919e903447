//! A small GPT over characters: `train_gpt` trains it, `batched_inference` writes with it.

use serde::{Deserialize, Serialize};
use spmd_run::builder::Op;
use spmd_run::dtype::DType::S32;
use spmd_run::mesh::PartitionSpec;

/// The sizes of a model.
#[derive(Serialize, Deserialize)]
pub struct Gpt {
    /// Different characters.
    pub vocabulary: i64,
    /// Characters that it sees at once.
    pub context: i64,
    pub width: i64,
    pub heads: i64,
    pub layers: usize,
}

/// One array of weights.
pub struct Weight {
    pub name: String,
    pub dims: Vec<i64>,
    /// Which axes of the mesh cut it: heads and hidden units lie over "model", as in Megatron-LM (2019).
    pub spec: PartitionSpec,
    /// The standard deviation of what it begins with; scales of norms begin as ones.
    #[allow(dead_code, reason = "inference begins with what was trained")]
    pub deviation: Option<f64>,
}

/// Arrays of weights in a layer.
const PER_LAYER: usize = 8;

impl Gpt {
    /// The weights in the order in which [`Gpt::logits`] takes them.
    pub fn weights(&self) -> Vec<Weight> {
        let weight = |name: String, dims: &[i64], spec: PartitionSpec, deviation| {
            let dims = dims.to_vec();
            Weight { name, dims, spec, deviation }
        };
        let (width, heads, hidden) = (self.width, self.heads, 4 * self.width);
        let per_head = width / heads;
        let (first, last) = (Some(0.02), Some(0.02 / (2.0 * self.layers as f64).sqrt()));
        let mut all = vec![
            weight("embedding".to_owned(), &[self.vocabulary, width], ().into(), first),
            weight("positions".to_owned(), &[self.context, width], ().into(), first),
        ];
        for layer in 0..self.layers {
            let named = |name| format!("layer{layer}.{name}");
            all.extend([
                weight(named("norm1"), &[width], ().into(), None),
                weight(named("query"), &[width, heads, per_head], (None, "model", None).into(), first),
                weight(named("key"), &[width, heads, per_head], (None, "model", None).into(), first),
                weight(named("value"), &[width, heads, per_head], (None, "model", None).into(), first),
                weight(named("output"), &[heads, per_head, width], ("model", None, None).into(), last),
                weight(named("norm2"), &[width], ().into(), None),
                weight(named("up"), &[width, hidden], (None, "model").into(), first),
                weight(named("down"), &[hidden, width], ("model", None).into(), last),
            ]);
        }
        all.push(weight("norm".to_owned(), &[width], ().into(), None));
        all
    }

    /// For each character of `tokens`, `s32[batch, context]`, how likely each one comes next: `f32[batch, context, vocabulary]`
    /// before softmax.
    pub fn logits<'b>(&self, weights: &[Op<'b>], tokens: Op<'b>) -> Op<'b> {
        let b = tokens.builder();
        let [embedding, positions, layers @ .., norm] = weights else { panic!("{} weights", weights.len()) };
        let square = [self.context, self.context];
        let is_past = b.iota(S32, &square, 0).ge(b.iota(S32, &square, 1));
        let scale = ((self.width / self.heads) as f64).sqrt();

        let mut x = embedding.take(tokens, 0) + *positions;
        for layer in layers.chunks_exact(PER_LAYER) {
            let [norm1, query, key, value, output, norm2, up, down] = layer[..] else { unreachable!() };
            let h = x.normalize(-1, 1e-5) * norm1;
            let [query, key, value] = [query, key, value].map(|w| b.einsum("btd,dhk->bthk", h, w));
            let scores = b.einsum("bqhk,bthk->bhqt", query, key) / scale;
            let attention = is_past.select(scores, -1e9).softmax(-1);
            let heads = b.einsum("bhqt,bthk->bqhk", attention, value);
            x = x + b.einsum("bqhk,hkd->bqd", heads, output);
            x = x + (x.normalize(-1, 1e-5) * norm2).matmul(up).gelu().matmul(down);
        }
        (x.normalize(-1, 1e-5) * *norm).matmul(embedding.t())
    }
}

/// The characters of a text, each known by its place in the order of their codes.
#[derive(Serialize, Deserialize)]
pub struct Alphabet(Vec<u8>);

impl Alphabet {
    #[allow(dead_code, reason = "inference has the alphabet of the training")]
    pub fn of(text: &[u8]) -> Alphabet {
        let mut characters = text.to_vec();
        characters.sort_unstable();
        characters.dedup();
        Alphabet(characters)
    }

    #[allow(dead_code, reason = "inference has the sizes of the training")]
    pub fn len(&self) -> i64 {
        self.0.len() as i64
    }

    /// The tokens of a text; a space stands for what the alphabet lacks.
    pub fn encode(&self, text: &[u8]) -> Vec<i32> {
        let place = |character| self.0.binary_search(character);
        let token = |character| place(character).or_else(|_| place(&b' ')).unwrap_or(0) as i32;
        text.iter().map(token).collect()
    }

    /// The text of tokens.
    #[allow(dead_code, reason = "training writes no text")]
    pub fn decode(&self, tokens: &[i32]) -> String {
        let character = |&token: &i32| self.0.get(token as usize).copied().unwrap_or(b' ');
        String::from_utf8_lossy(&tokens.iter().map(character).collect::<Vec<u8>>()).into_owned()
    }
}
