//! A fixed orthogonal rotation that spreads every coordinate evenly over all of them, where one exists.
//!
//! A Hadamard matrix has entries ±1 and orthogonal rows; divided by √n it is a rotation after which no
//! coordinate stands out, so that few bits a coordinate lose little. For n = 2^a it is Sylvester's, applied in
//! n·log n additions. For n = m·2^a with m − 1 a prime that is 3 modulo 4 (96 = 12·8, 80 = 20·4, 120 = 60·2)
//! it is the Kronecker product of Paley's matrix of order m (Paley, "On orthogonal matrices", 1933) and
//! Sylvester's of order 2^a. For other n (112 = 7·16) it is Sylvester's of order 2^a on each of the m parts:
//! still a rotation, which spreads each part over itself.

/// Largest order of a Paley matrix that is looked for; it bounds the scratch of [`Rotation::apply`].
const PALEY_MAX: usize = 64;

/// A rotation of vectors of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    /// Parts of a vector.
    parts: usize,
    /// Length of a part, a power of two.
    part: usize,
    /// Mixes the parts: `[parts][parts]` signs; empty: parts stay apart.
    mix: Vec<bool>,
}

impl Rotation {
    /// The rotation of vectors of length `dim`.
    pub fn new(dim: usize) -> Self {
        let part = 1 << dim.trailing_zeros().min(usize::BITS - 1);
        if dim == part || dim == 0 {
            return Self { parts: 1, part: dim.max(1), mix: Vec::new() };
        }
        let odd = dim / part;
        // The smallest Paley order keeps most of the work in Sylvester's fast form.
        let orders = (2..).map(|a| odd << a).take_while(|&m| m <= dim.min(PALEY_MAX));
        match orders.into_iter().find(|&m| is_paley_prime(m - 1)) {
            Some(m) => Self { parts: m, part: dim / m, mix: paley(m) },
            None => Self { parts: odd, part, mix: Vec::new() },
        }
    }

    /// Rotates `x` in place.
    pub fn apply(&self, x: &mut [f32]) {
        for part in x.chunks_exact_mut(self.part) {
            sylvester(part);
        }
        if !self.mix.is_empty() {
            for at in 0..self.part {
                self.mix_parts(x, at);
            }
        }
        let scale = self.scale();
        x.iter_mut().for_each(|v| *v *= scale);
    }

    /// What makes a rotation of the signs: 1/√ of the coordinates that are mixed with each other.
    fn scale(&self) -> f32 {
        let mixed = if self.mix.is_empty() { self.part } else { self.part * self.parts };
        1.0 / (mixed as f32).sqrt()
    }

    /// CUDA C++ of `rotate(x, count)`: [`Rotation::apply`] to each of `count` vectors in shared memory, by all threads of a
    /// thread block, with the same operations in the same order. It synchronises first and last.
    pub(super) fn device(&self) -> String {
        let row = |row: &[bool]| {
            let bits = row.iter().enumerate().fold(0_u64, |bits, (i, &plus)| bits | u64::from(plus) << i);
            format!("0x{bits:016x}ull")
        };
        let rows: Vec<String> = self.mix.chunks_exact(self.parts).map(row).collect();
        let (signs, mix) = match rows.len() {
            0 => (String::new(), ""),
            n => (format!("__device__ const u64 ROTATION_SIGNS[{n}] = {{{}}};\n", rows.join(", ")), MIX),
        };
        signs
            + &ROTATE
                .replace("MIX\n", mix)
                .replace("PARTS", &self.parts.to_string())
                .replace("PART", &self.part.to_string())
                .replace("SCALE", &super::device_float(self.scale()))
    }

    /// Mixes the coordinates at `at` of all parts.
    fn mix_parts(&self, x: &mut [f32], at: usize) {
        let mut column = [0.0f32; PALEY_MAX];
        for (value, part) in column.iter_mut().zip(x.chunks_exact(self.part)) {
            *value = part[at];
        }
        for (row, part) in self.mix.chunks_exact(self.parts).zip(x.chunks_exact_mut(self.part)) {
            part[at] = row.iter().zip(&column).map(|(&plus, &v)| if plus { v } else { -v }).sum();
        }
    }
}

const ROTATE: &str = r"__device__ void rotate(float* x, u32 count) {
    __syncthreads();
    for (u32 half = 1; half < PART; half *= 2) {
        for (u32 i = threadIdx.x; i < count * HEAD_DIM / 2; i += blockDim.x) {
            float* p = x + i / half * 2 * half + i % half;
            float a = p[0], b = p[half];
            p[0] = a + b;
            p[half] = a - b;
        }
        __syncthreads();
    }
MIX
    for (u32 i = threadIdx.x; i < count * HEAD_DIM; i += blockDim.x) x[i] *= SCALE;
    __syncthreads();
}
";

/// Sums start from −0, as those of the host do.
const MIX: &str = r"    for (u32 i = threadIdx.x; i < count * PART; i += blockDim.x) {
        float* p = x + i / PART * HEAD_DIM + i % PART;
        float column[PARTS];
#pragma unroll
        for (u32 c = 0; c < PARTS; c++) column[c] = p[c * PART];
        for (u32 r = 0; r < PARTS; r++) {
            float sum = -0.0f;
#pragma unroll
            for (u32 c = 0; c < PARTS; c++) sum += ROTATION_SIGNS[r] >> c & 1 ? column[c] : -column[c];
            p[r * PART] = sum;
        }
    }
    __syncthreads();
";

/// Sylvester's transform without its factor; the length is a power of two.
fn sylvester(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

fn is_paley_prime(q: usize) -> bool {
    q % 4 == 3 && (2..).take_while(|d| d * d <= q).all(|d| !q.is_multiple_of(d))
}

/// Signs of Paley's first matrix of order `m`: the identity plus the bordered skew matrix of the quadratic
/// residues modulo the prime `m − 1`.
fn paley(m: usize) -> Vec<bool> {
    let q = m - 1;
    let mut residue = vec![false; q];
    (1..q).for_each(|x| residue[x * x % q] = true);
    let plus = |row: usize, column: usize| match (row, column) {
        (r, c) if r == c => true,
        (0, _) => true,
        (_, 0) => false,
        (r, c) => residue[(r + q - c) % q],
    };
    (0..m * m).map(|i| plus(i / m, i % m)).collect()
}
