//! GGML's numbers for tensor types.

use crate::TensorType;

/// The number that stands for a type in a file.
pub(crate) const fn code(dtype: TensorType) -> u32 {
    match dtype {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q8_0 => 8,
        TensorType::Q2_K => 10,
        TensorType::Q3_K => 11,
        TensorType::Q4_K => 12,
        TensorType::Q5_K => 13,
        TensorType::Q6_K => 14,
        TensorType::BF16 => 30,
    }
}

/// The type that a number stands for, if it is one that is computed with.
pub(crate) fn from_code(found: u32) -> Option<TensorType> {
    TensorType::ALL.into_iter().find(|dtype| code(*dtype) == found)
}

/// The name of a type that is not computed with, for the error that says so.
pub(super) fn unsupported_name(found: u32) -> String {
    let name = match found {
        4 => "Q4_2 (removed from the format)",
        5 => "Q4_3 (removed from the format)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed from the format)",
        32 => "Q4_0_4_8 (removed from the format)",
        33 => "Q4_0_8_8 (removed from the format)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed from the format)",
        37 => "IQ4_NL_4_8 (removed from the format)",
        38 => "IQ4_NL_8_8 (removed from the format)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        other => return format!("number {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_match_both_ways() {
        for dtype in TensorType::ALL {
            assert_eq!(from_code(code(dtype)), Some(dtype));
        }
        assert_eq!(from_code(16), None);
        assert_eq!(unsupported_name(39), "MXFP4");
        assert_eq!(unsupported_name(77), "number 77");
    }
}
