use proptest::prelude::*;

use super::*;

fn literal(dtype: DType, dims: &[i64], values: &[Scalar]) -> Result<LiteralProto, LiteralError> {
    let mut writer = DenseWriter::new(dtype, values.len());
    for &value in values {
        writer.push(value)?;
    }
    writer.finish(shape::array(dtype, dims))
}

fn text(literal: &LiteralProto) -> String {
    let mut out = String::new();
    format_literal(literal, &mut out).unwrap();
    out
}

/// The pattern of one float as the literal stores it.
fn pattern(dtype: DType, value: f64) -> Result<u64, LiteralError> {
    Ok(load(&literal(dtype, &[], &[Scalar::Float(value)])?, dtype)[0])
}

#[test]
fn fields_hold_what_xla_writes() {
    let ints = |values: &[i128]| values.iter().map(|&value| Scalar::Int(value)).collect::<Vec<_>>();
    let one = |dtype, values: &[i128]| literal(dtype, &[values.len() as i64], &ints(values)).unwrap();
    assert_eq!(one(DType::S1, &[0, -1]).s1s, [0, 1]);
    assert_eq!(one(DType::S2, &[0, 1, -2, -1]).s2s, [0, 1, 2, 3]);
    assert_eq!(one(DType::S4, &[1, -8, 7, -1]).s4s, [1, 8, 7, 15]);
    assert_eq!(one(DType::U4, &[0, 15]).u4s, [0, 15]);
    assert_eq!(one(DType::S8, &[-128, 127]).s8s, [0x80, 0x7f]);
    assert_eq!(one(DType::S16, &[-2, 258]).s16s, [0xfe, 0xff, 2, 1]);
    assert_eq!(one(DType::F16, &[1]).f16s, [0, 0x3c]);
    assert_eq!(one(DType::Pred, &[1, 0, 2]).preds, [true, false, true]);
    assert_eq!(one(DType::U64, &[-1]).u64s, [u64::MAX]);
    let complex = literal(DType::C64, &[1], &[Scalar::Complex(1.0, -2.5)]).unwrap();
    assert_eq!(complex.c64s, [1.0, -2.5]);
}

#[test]
fn data_follows_the_layout() {
    let mut shape = shape::array(DType::S32, &[2, 3]);
    shape.layout.get_or_insert_default().minor_to_major = vec![0, 1];
    let mut writer = DenseWriter::new(DType::S32, 6);
    for value in 1..=6 {
        writer.push(Scalar::Int(value)).unwrap();
    }
    let literal = writer.finish(shape).unwrap();
    assert_eq!(literal.s32s, [1, 4, 2, 5, 3, 6]);
    assert_eq!(text(&literal), "{{1, 2, 3}, {4, 5, 6}}");
}

#[test]
fn text_is_short_and_keeps_the_sign_of_zero() {
    let f32s = |values: &[f64]| {
        let values: Vec<_> = values.iter().map(|&value| Scalar::Float(value)).collect();
        text(&literal(DType::F32, &[values.len() as i64], &values).unwrap())
    };
    assert_eq!(f32s(&[1.0, -0.0, 0.0, 0.1, 1e30, -1.5e-7]), "{1, -0.0, 0, 0.1, 1e30, -1.5e-7}");
    assert_eq!(f32s(&[f64::NAN, -f64::INFINITY]), "{nan, -inf}");
    let payload = Scalar::NanPayload { negative: true, payload: 1 };
    assert_eq!(text(&literal(DType::BF16, &[1], &[payload]).unwrap()), "{-nan(0x1)}");
    assert_eq!(text(&literal(DType::BF16, &[], &[Scalar::Float(0.1)]).unwrap()), "0.1");
    assert_eq!(text(&literal(DType::F8E8M0FNU, &[], &[Scalar::Float(5.9e-39)]).unwrap()), "5.877471754111438e-39");
    let largest = Scalar::Complex(f64::from(f32::MAX), 0.1f32.into());
    assert_eq!(text(&literal(DType::C64, &[], &[largest]).unwrap()), "(3.4028234663852886e38, 0.1)");
    assert_eq!(text(&literal(DType::Pred, &[], &[Scalar::Bool(true)]).unwrap()), "true");
    assert_eq!(text(&literal(DType::S32, &[2, 0], &[]).unwrap()), "{{}, {}}");
    let endless = literal(DType::S32, &[i64::MAX, 0], &[]).unwrap();
    assert!(format_literal(&endless, &mut String::new()).is_err());
}

#[test]
fn wrong_elements_are_explained() {
    let message = |dtype, value| literal(dtype, &[], &[value]).unwrap_err().to_string();
    insta::assert_snapshot!(message(DType::S4, Scalar::Int(8)), @"8 is out of range for s4 (-8 to 7)");
    insta::assert_snapshot!(message(DType::U8, Scalar::Int(-1)), @"-1 is out of range for u8 (0 to 255)");
    insta::assert_snapshot!(message(DType::S32, Scalar::Float(1.5)), @"a fraction is no value of s32: expected an integer");
    insta::assert_snapshot!(message(DType::F16, Scalar::Int(65520)), @"65520.0 is out of range for f16 (at most 65504.0 in magnitude)");
    insta::assert_snapshot!(message(DType::F8E8M0FNU, Scalar::Int(0)), @"0.0 is out of range for f8e8m0fnu (powers of two from 2^-127 to 2^127)");
    insta::assert_snapshot!(message(DType::C64, Scalar::Int(1)), @"an integer is no value of c64: expected a complex number such as (1, -2)");
    insta::assert_snapshot!(message(DType::F8E5M2, Scalar::NanPayload { negative: false, payload: 4 }), @"the NaN payload 0x4 does not fit f8e5m2, whose largest is 0x3");
    insta::assert_snapshot!(
        literal(DType::F32, &[3], &[Scalar::Int(1)]).unwrap_err().to_string(),
        @"the literal holds 1 elements, its shape f32[3] has 3"
    );
    assert!(literal(DType::F32, &[i64::MAX, i64::MAX], &[]).is_err());
}

/// Number of NaNs, largest finite value and the sum of the magnitudes of all finite ones, as `ml_dtypes` has them.
#[test]
fn every_narrow_pattern_has_its_value() {
    let expected = [
        (DType::F4E2M1FN, 0, 6.0, 36.0),
        (DType::F6E2M3FN, 0, 7.5, 168.0),
        (DType::F6E3M2FN, 0, 28.0, 350.0),
        (DType::F8E3M4, 30, 15.5, 744.0),
        (DType::F8E4M3, 14, 240.0, 5887.75),
        (DType::F8E4M3B11FNUZ, 1, 30.0, 735.984375),
        (DType::F8E4M3FN, 2, 448.0, 10815.75),
        (DType::F8E4M3FNUZ, 1, 240.0, 5887.875),
        (DType::F8E5M2, 6, 57344.0, 720895.9995117188),
        (DType::F8E5M2FNUZ, 1, 57344.0, 720895.9997558594),
        (DType::F8E8M0FNU, 1, 1.7014118346046923e38, 3.402823669209385e38),
        (DType::F16, 2046, 65504.0, 201261055.875),
        (DType::BF16, 254, 3.3895313892515355e38, 1.3032814653071943e41),
    ];
    for (dtype, nans, max, sum) in expected {
        let values = (0..1 << dtype.bits()).map(|bits| float::decode(dtype, bits)).collect::<Vec<_>>();
        assert_eq!(values.iter().filter(|value| value.is_nan()).count(), nans, "{dtype}");
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        assert_eq!(finite().fold(0.0, f64::max), max, "{dtype}");
        let found: f64 = finite().map(f64::abs).sum();
        assert!((found / sum - 1.0).abs() < 1e-12, "{dtype}: {found}");
        for (bits, &value) in values.iter().enumerate() {
            if value.is_finite() {
                assert_eq!(float::encode(dtype, value), Some(bits as u64), "{dtype} {value}");
            }
        }
    }
}

#[test]
fn rounding_and_overflow_follow_xla() {
    assert_eq!(pattern(DType::F4E2M1FN, 1000.0), Ok(7));
    assert_eq!(pattern(DType::F4E2M1FN, f64::NAN), Ok(8));
    assert_eq!(pattern(DType::F6E3M2FN, -f64::INFINITY), Ok(0x3f));
    assert_eq!(pattern(DType::F8E4M3FN, 464.0), Ok(0x7e));
    assert!(pattern(DType::F8E4M3FN, 465.0).is_err());
    assert_eq!(pattern(DType::F8E4M3FN, f64::INFINITY), Ok(0x7f));
    assert_eq!(pattern(DType::F8E4M3FNUZ, -0.0), Ok(0));
    assert_eq!(pattern(DType::F8E5M2, 1.12500000000001), Ok(0x3d));
    assert_eq!(pattern(DType::F8E8M0FNU, 3.0), Ok(0x81));
    assert_eq!(pattern(DType::F8E8M0FNU, 1.5 * 2f64.powi(-127)), Ok(1));
    assert!(pattern(DType::F8E8M0FNU, 2f64.powi(-150)).is_err());
    // Rounded by way of f32: directly it would be the next value.
    assert_eq!(pattern(DType::F16, 1.0004882812509095), Ok(0x3c00));
    assert_eq!(pattern(DType::F16, 65519.0), Ok(0x7bff));
    assert!(pattern(DType::F32, 1e39).is_err());
}

/// Reads one element's text as the lexer would hand it over.
fn read(text: &str) -> Scalar {
    if let Some(parts) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        let part = |text: &str| match read(text) {
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
            Scalar::NanPayload { negative, payload } => {
                f64::from_bits(float::nan_with_payload(DType::F64, negative, payload))
            }
            other => panic!("{other:?}"),
        };
        let (re, im) = parts.split_once(", ").unwrap();
        return Scalar::Complex(part(re), part(im));
    }
    if let Some((head, payload)) = text.split_once("nan(0x") {
        let payload = u64::from_str_radix(payload.trim_end_matches(')'), 16).unwrap();
        return Scalar::NanPayload { negative: head == "-", payload };
    }
    match text {
        "true" | "false" => Scalar::Bool(text == "true"),
        _ => text.parse().map_or_else(|_| Scalar::Float(text.parse().unwrap()), Scalar::Int),
    }
}

proptest! {
    #[test]
    fn format_then_read_gives_the_same_bits(index in 0usize..32, bits: [u64; 2]) {
        let dtype = DType::all().nth(index).unwrap();
        let part = part_of_complex(dtype).unwrap_or(dtype);
        let mask = if dtype == DType::Pred { 1 } else { mask(part) };
        let mut original = LiteralProto { shape: shape::scalar(dtype).into(), ..Default::default() };
        store(&mut original, dtype, &bits.map(|bits| bits & mask)[..words_per_element(dtype)]);
        let again = literal(dtype, &[], &[read(&text(&original))]).unwrap();
        prop_assert_eq!(load(&again, dtype), load(&original, dtype), "{} {}", dtype, text(&original));
    }

    #[test]
    fn shapes_never_panic(dims in proptest::collection::vec(any::<i64>(), 0..4), minor in proptest::collection::vec(-1i64..4, 0..4)) {
        let mut shape = shape::array(DType::F32, &dims);
        shape.layout.get_or_insert_default().minor_to_major = minor;
        let literal = LiteralProto { shape: shape.into(), f32s: vec![1.0], ..Default::default() };
        let _ = format_literal(&literal, &mut String::new());
    }
}
