//! The forward pass: a batch of tokens through all layers.

use ls_cpu::{
    AttentionShape, Cpu, Gate, KvCache, Pairing, Product, add, rms_norm, rms_norm_in_place, rope,
};
use ls_model::Config;
use ls_model::config::{Activation, RopeLayout};
use ls_model::pack::LayerLayout;

use crate::EngineError;
use crate::chunked::Chunked;
use crate::chunks::{ChunkPass, ChunkSource};
use crate::gpu::Gpu;
use crate::refine::Refined;
use crate::rotary::{Angles, Frequencies};
use crate::sparse::{Phase, Sparse};
use crate::state::{Buffers, Hidden, State};
use crate::weights::{Layer, Mlp, Weights};

/// What the forward pass reads: everything but the sequence.
pub(crate) struct Forward<'a> {
    pub cpu: &'a Cpu,
    pub config: &'a Config,
    pub weights: &'a Weights,
    /// `None`: no layer's MLP is chunks.
    pub chunks: Option<&'a ChunkSource>,
    /// `None`: there is none.
    pub gpu: Option<&'a Gpu>,
    /// Of layers that see everything, and of those with a window.
    pub frequencies: &'a [Frequencies; 2],
}

impl Forward<'_> {
    /// Runs `tokens` (at most a batch, known to fit) through all layers. Their residual streams
    /// are left in the buffers, and the sequence is longer by them, unless there is an error.
    pub fn tokens(
        &self,
        state: &mut State,
        tokens: &[u32],
        phase: Phase,
    ) -> Result<(), EngineError> {
        if let Some(mut refined) = state.refined.take() {
            let is_it = refined.prompts.chooses_in(phase);
            let done = is_it.then(|| self.refined(state, tokens, &mut refined));
            state.refined = Some(refined);
            if let Some(done) = done {
                return done;
            }
        }
        if let Some(gpu) = self.gpu.filter(|gpu| gpu.in_service()) {
            match self.pass(state, tokens, phase, Some(gpu)) {
                // Its pass is over by now, and the sequence is as it was.
                Err(EngineError::Gpu(error)) => gpu.retire(&error, self.chunks),
                done => return done,
            }
        }
        self.pass(state, tokens, phase, None)
    }

    fn pass(
        &self,
        state: &mut State,
        tokens: &[u32],
        phase: Phase,
        gpu: Option<&Gpu>,
    ) -> Result<(), EngineError> {
        let (n, start, d) = (tokens.len(), state.len, self.config.d_model);
        let b = &mut state.buffers;
        let mut sparse = state.sparse.as_deref_mut().filter(|sparse| sparse.applies_to(phase));
        self.embed(tokens, &mut b.x[..n * d])?;
        let takes_chunks = gpu.is_none_or(|gpu| !gpu.holds_all());
        let pass = self.chunks.filter(|_| takes_chunks).map(ChunkSource::begin_pass);
        self.set_angles(b, start, n);
        for (i, layer) in self.weights.layers.iter().enumerate() {
            self.attend(i, layer, &mut state.cache[i], b, start, n);
            match gpu {
                Some(gpu) => self.gpu_mlp(gpu, i, layer, pass.as_ref(), b, n)?,
                None => self.mlp(i, layer, pass.as_ref(), sparse.as_deref_mut(), b, start, n)?,
            }
        }
        if let Some(pass) = pass {
            pass.complete();
        }
        state.len += n;
        Ok(())
    }

    /// The same, one token after the other, as a refiner streams them.
    fn refined(
        &self,
        state: &mut State,
        tokens: &[u32],
        refined: &mut Refined,
    ) -> Result<(), EngineError> {
        let (d, b) = (self.config.d_model, &mut state.buffers);
        let streamer = self.chunks.and_then(ChunkSource::streamer);
        let streamer = streamer.ok_or(EngineError::NoBudget)?;
        let Refined { refiner, counts, .. } = refined;
        let mut residuals = vec![0.0; tokens.len() * d];
        for (t, (token, residual)) in tokens.iter().zip(residuals.chunks_exact_mut(d)).enumerate() {
            let start = state.len + t;
            self.embed(&[*token], &mut b.x[..d])?;
            let mut pass = refiner.begin(streamer)?;
            self.set_angles(b, start, 1);
            for (i, layer) in self.weights.layers.iter().enumerate() {
                self.attend(i, layer, &mut state.cache[i], b, start, 1);
                self.norm(&layer.ffn_norm, &b.x, &mut b.normed, 1);
                let Mlp::Chunks(mlp) = &layer.mlp else {
                    unreachable!("what is streamed is chunks");
                };
                pass.mlp(self, i, mlp, b, counts)?;
                self.add_delta(&layer.post_ffn_norm, b, 1);
            }
            pass.complete()?;
            residual.copy_from_slice(&b.x[..d]);
        }
        b.x[..residuals.len()].copy_from_slice(&residuals);
        state.len += tokens.len();
        Ok(())
    }

    /// How the chunks of layer `i` lie, which are streamed.
    pub fn chunk_layout(&self, i: usize) -> &LayerLayout {
        match &self.weights.layers[i].mlp {
            Mlp::Chunks(mlp) => &mlp.layout,
            Mlp::Rows { .. } => unreachable!("what is streamed is chunks"),
        }
    }

    /// Logits after rows `rows` of the batch, `[rows, vocab_size]`.
    pub fn logits(&self, b: &mut Buffers, rows: std::ops::Range<usize>, out: &mut [f32]) {
        let (d, isa, eps) = (self.config.d_model, self.cpu.isa(), self.config.norm_eps);
        let x = &b.x[rows.start * d..rows.end * d];
        b.last.fill(self.cpu, rows.len(), &|t, out| {
            rms_norm(isa, &x[t * d..][..d], &self.weights.output_norm, eps, out);
        });
        self.cpu.matmul(self.weights.head(), &b.last, rows.len(), out);
    }

    /// The angles of positions `start..start + n`, which attention rotates by.
    pub fn set_angles(&self, b: &mut Buffers, start: usize, n: usize) {
        for (angles, frequencies) in b.angles.iter_mut().zip(self.frequencies) {
            angles.set(frequencies, start, n);
        }
    }

    /// Attention of layer `i` for the `n` tokens from position `start` on, whose residual streams
    /// are in the buffers and whose predecessors' keys and values are in `cache`.
    pub fn attend(
        &self,
        i: usize,
        layer: &Layer,
        cache: &mut KvCache,
        b: &mut Buffers,
        start: usize,
        n: usize,
    ) {
        self.project(i, layer, b, n);
        let kv = n * self.config.n_kv_heads * self.config.head_dim;
        cache.store(self.cpu, start, &b.k[..kv], &b.v[..kv]);
        let shape = AttentionShape {
            n_heads: self.config.n_heads,
            scale: self.config.attention_scale,
            window: self.config.window[i],
        };
        let heads = self.config.n_heads * self.config.head_dim;
        let (q, attended) = (&b.q[..n * heads], &mut b.attended[..n * heads]);
        self.cpu.attention(shape, cache, start, n, q, attended);
        self.attention_output(layer, b, n);
    }

    /// The embeddings of `tokens`, `[n, d_model]`.
    pub fn embed(&self, tokens: &[u32], x: &mut [f32]) -> Result<(), EngineError> {
        self.weights.embedding.lookup(tokens, x)?;
        if self.config.embedding_scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= self.config.embedding_scale);
        }
        Ok(())
    }

    /// Queries, keys and values of a layer, rotated.
    fn project(&self, i: usize, layer: &Layer, b: &mut Buffers, n: usize) {
        let (c, cpu) = (self.config, self.cpu);
        let (heads, kv_heads) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        self.norm(&layer.attn_norm, &b.x, &mut b.normed, n);
        let (q, k, v) = (&mut b.q[..n * heads], &mut b.k[..n * kv_heads], &mut b.v[..n * kv_heads]);
        let mut products = [
            Product { matrix: layer.q.view(), out: q },
            Product { matrix: layer.k.view(), out: k },
            Product { matrix: layer.v.view(), out: v },
        ];
        cpu.matmuls(&mut products, &b.normed, n);
        let angles = &b.angles[usize::from(c.window[i].is_some())];
        self.finish_heads(q, heads, &layer.q_bias, &layer.q_norm, angles);
        self.finish_heads(k, kv_heads, &layer.k_bias, &layer.k_norm, angles);
        if let Some(bias) = &layer.v_bias {
            cpu.pool().for_each_chunk(v, kv_heads, &|_, v| add(cpu.isa(), v, bias));
        }
    }

    /// Bias, norm and rotation of queries or keys, `[n, width]`.
    fn finish_heads(
        &self,
        x: &mut [f32],
        width: usize,
        bias: &Option<Vec<f32>>,
        norm: &Option<Vec<f32>>,
        angles: &Angles,
    ) {
        let (c, isa) = (self.config, self.cpu.isa());
        let pairing = match c.rope.layout {
            RopeLayout::Interleaved => Pairing::Interleaved,
            RopeLayout::Halves => Pairing::Halves,
        };
        self.cpu.pool().for_each_chunk(x, width, &|t, row| {
            if let Some(bias) = bias {
                add(isa, row, bias);
            }
            let (cos, sin) = angles.at(t);
            for head in row.chunks_exact_mut(c.head_dim) {
                if let Some(norm) = norm {
                    rms_norm_in_place(isa, head, norm, c.norm_eps);
                }
                rope(pairing, head, cos, sin);
            }
        });
    }

    fn attention_output(&self, layer: &Layer, b: &mut Buffers, n: usize) {
        let (d, width) = (self.config.d_model, self.config.n_heads * self.config.head_dim);
        let attended = &b.attended;
        b.attended_q8.fill(self.cpu, n, &|t, out| {
            out.copy_from_slice(&attended[t * width..][..width]);
        });
        self.cpu.matmul(layer.o.view(), &b.attended_q8, n, &mut b.delta[..n * d]);
        self.add_delta(&layer.post_attn_norm, b, n);
    }

    /// The MLP of layer `i` for the `n` tokens in the buffers; `pass` when it is chunks.
    #[allow(clippy::too_many_arguments)] // one layer's whole context
    pub fn mlp(
        &self,
        i: usize,
        layer: &Layer,
        pass: Option<&ChunkPass<'_>>,
        sparse: Option<&mut Sparse>,
        b: &mut Buffers,
        start: usize,
        n: usize,
    ) -> Result<(), EngineError> {
        let (cpu, d) = (self.cpu, self.config.d_model);
        let gate = self.gate();
        self.norm(&layer.ffn_norm, &b.x, &mut b.normed, n);
        match (&layer.mlp, &mut b.hidden, pass) {
            (Mlp::Rows { gate: gate_rows, up, down }, Hidden::Rows(hidden), _) => {
                cpu.mlp_neurons(gate_rows.view(), up.view(), gate, &b.normed, n, hidden);
                cpu.matmul(down.view(), hidden, n, &mut b.delta[..n * d]);
            }
            (Mlp::Chunks(mlp), Hidden::Segments { partial, neurons }, Some(pass)) => {
                pass.begin_layer(i);
                let (x, out) = (&b.normed, &mut b.delta[..n * d]);
                let chunked = Chunked { cpu, i, mlp, gate, pass, x, n };
                match sparse {
                    None => chunked.add(None, partial, neurons, out).map(drop)?,
                    Some(sparse) => chunked.add_chosen(sparse, start, partial, neurons, out)?,
                }
                pass.end_layer(i);
            }
            _ => unreachable!("buffers are made for the weights"),
        }
        self.add_delta(&layer.post_ffn_norm, b, n);
        Ok(())
    }

    /// The MLP of layer `i`, which is chunks, on a GPU.
    fn gpu_mlp(
        &self,
        gpu: &Gpu,
        i: usize,
        layer: &Layer,
        pass: Option<&ChunkPass<'_>>,
        b: &mut Buffers,
        n: usize,
    ) -> Result<(), EngineError> {
        let Mlp::Chunks(mlp) = &layer.mlp else { unreachable!("a GPU is only opened for packs") };
        self.norm(&layer.ffn_norm, &b.x, &mut b.normed, n);
        let out = &mut b.delta[..n * self.config.d_model];
        gpu.mlp(i, mlp, pass, b.normed.rows(n), out)?;
        self.add_delta(&layer.post_ffn_norm, b, n);
        Ok(())
    }

    /// The function of the MLP's gate.
    pub fn gate(&self) -> Gate {
        match self.config.activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        }
    }

    /// The first `n` rows of `x`, normalised with `weight`.
    pub fn norm(&self, weight: &[f32], x: &[f32], out: &mut ls_cpu::Activations, n: usize) {
        let (d, isa, eps) = (self.config.d_model, self.cpu.isa(), self.config.norm_eps);
        out.fill(self.cpu, n, &|t, out| rms_norm(isa, &x[t * d..][..d], weight, eps, out));
    }

    fn add_delta(&self, norm: &Option<Vec<f32>>, b: &mut Buffers, n: usize) {
        let len = n * self.config.d_model;
        self.add_output(norm, &mut b.delta[..len], &mut b.x[..len]);
    }

    /// Adds a block's output, `[n, d_model]`, to residual streams, normalised first where the model
    /// does so.
    pub fn add_output(&self, norm: &Option<Vec<f32>>, delta: &mut [f32], x: &mut [f32]) {
        let (d, isa, eps) = (self.config.d_model, self.cpu.isa(), self.config.norm_eps);
        let pool = self.cpu.pool();
        if let Some(norm) = norm {
            pool.for_each_chunk(delta, d, &|_, row| rms_norm_in_place(isa, row, norm, eps));
        }
        let delta = &*delta;
        pool.for_each_chunk(x, d, &|t, x| add(isa, x, &delta[t * d..][..d]));
    }
}
