//! How summary vectors are stored: a few bits a coordinate, a scale a vector, rounding that keeps bounds.

/// Bits of a stored coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 8- or 4-bit codes, `lo + step · code`; `lo` and `step` are bf16, one pair a part (see [`Rounding`]).
    Affine {
        /// 8 or 4.
        bits: u8,
    },
    /// 4-, 2- or 1-bit codes of a normal variable, `rms · level(code)`; the vector's root mean square is one
    /// byte, a sixteenth of an octave a unit. Levels are the uniform quantiser's that loses least on a Gaussian.
    Normal {
        /// 4, 2 or 1.
        bits: u8,
    },
}

/// Which way a coordinate is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest storable value.
    Nearest,
    /// The first `upper` coordinates towards +∞, the others towards −∞, so that bounds stay bounds.
    Outward {
        /// Coordinates rounded up.
        upper: usize,
    },
}

impl Rounding {
    /// Parts of a vector that have a scale of their own.
    fn parts(self) -> usize {
        match self {
            Self::Nearest => 1,
            Self::Outward { .. } => 2,
        }
    }
}

impl Storage {
    /// Bytes of a stored vector: scales first, then codes, lowest bits first in a byte.
    pub fn vector_bytes(self, dim: usize, rounding: Rounding) -> usize {
        match self {
            Self::F32 => 4 * dim,
            Self::Bf16 => 2 * dim,
            Self::Affine { bits } => 4 * rounding.parts() + (dim * bits as usize).div_ceil(8),
            Self::Normal { bits } => 1 + (dim * bits as usize).div_ceil(8),
        }
    }
}
