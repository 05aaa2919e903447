//! Arrays as JSON values.

use serde_json::Value as Json;

use super::HostArray;
use super::element::{Value, narrowed, value};
use crate::dtype::DType;

impl HostArray {
    /// The array as nested JSON arrays, one level per dimension; a scalar is its element.
    ///
    /// Floats have the fewest digits that read back as the same element. JSON has no numbers for `"NaN"`, `"Infinity"` and
    /// `"-Infinity"`, so these are strings. A complex element is `[real, imaginary]`.
    pub fn to_json(&self) -> Json {
        self.nested(0, 0)
    }

    /// What lies under the leading `dim` indices, of which `position` is the linear index.
    fn nested(&self, dim: usize, position: usize) -> Json {
        match self.dims().get(dim) {
            Some(&size) => (0..size).map(|index| self.nested(dim + 1, position * size + index)).collect(),
            None => {
                let size = self.dtype().size();
                let bytes = self.data().get(position * size..(position + 1) * size);
                bytes.map_or(Json::Null, |bytes| element(self.dtype(), bytes))
            }
        }
    }
}

fn element(dtype: DType, bytes: &[u8]) -> Json {
    match value(dtype, bytes) {
        Value::Bool(value) => value.into(),
        // No element type has integers beyond these.
        Value::Int(value) => i64::try_from(value).map_or_else(|_| (value as u64).into(), Json::from),
        Value::Float(value) => number(narrowed(dtype, bytes, value), dtype == DType::F32),
        Value::Complex(real, imaginary) => {
            let single = dtype == DType::C64;
            vec![number(real, single), number(imaginary, single)].into()
        }
    }
}

fn number(value: f64, single: bool) -> Json {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else if single {
        // The double with the same digits as the single's shortest text.
        (value as f32).to_string().parse().unwrap_or(value).into()
    } else {
        value.into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fill;
    use super::*;

    fn json(dtype: DType, dims: &[usize], data: Vec<u8>) -> String {
        HostArray::new(dtype, dims.to_vec(), data).unwrap().to_json().to_string()
    }

    #[test]
    fn dimensions_nest() {
        let iota = |dims: &[usize]| HostArray::filled(Fill::Iota, 0, DType::S32, dims).unwrap().to_json().to_string();
        assert_eq!(iota(&[]), "0");
        assert_eq!(iota(&[2, 1, 3]), "[[[0,1,2]],[[3,4,5]]]");
        assert_eq!(iota(&[2, 0]), "[[],[]]");
        let all = HostArray::filled(Fill::Iota, 0, DType::U8, &[1500]).unwrap();
        assert_eq!(all.to_json().as_array().unwrap().len(), 1500);
    }

    #[test]
    fn elements_are_json_values() {
        let floats = [0.1f32, -0.0, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let bytes = |floats: &[f32]| floats.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(json(DType::F32, &[6], bytes(&floats)), r#"[0.1,-0.0,1e+30,"NaN","Infinity","-Infinity"]"#);
        assert_eq!(json(DType::C64, &[1], bytes(&[1.5, f32::NAN])), r#"[[1.5,"NaN"]]"#);
        assert_eq!(json(DType::F16, &[1], half::f16::from_f32(0.1).to_le_bytes().to_vec()), "[0.1]");
        assert_eq!(json(DType::Pred, &[2], vec![0, 1]), "[false,true]");
        assert_eq!(json(DType::S4, &[2], vec![0x0f, 7]), "[-1,7]");
        assert_eq!(json(DType::U64, &[1], vec![0xff; 8]), "[18446744073709551615]");
        assert_eq!(json(DType::S64, &[1], i64::MIN.to_le_bytes().to_vec()), "[-9223372036854775808]");
    }
}
