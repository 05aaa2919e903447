//! Arrays as text, in NumPy's manner.

use std::fmt;

use super::HostArray;
use super::element::write_text;

/// Arrays with more elements than this are shown by their edges.
const WHOLE_UP_TO: usize = 1000;
/// Elements kept at each end of a dimension that is shown by its edges.
const EDGE: usize = 3;
const LINE_WIDTH: usize = 80;

/// Nested brackets; more than 1000 elements are shown by three at each end of every dimension, all of them with `{:#}`.
impl fmt::Display for HostArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elided = !f.alternate() && self.num_elements() > WHOLE_UP_TO;
        let mut printer = Printer { array: self, elided, width: 0 };
        printer.width = printer.widest(0, 0);
        let mut text = String::new();
        printer.print(0, 0, &mut text);
        f.write_str(&text)
    }
}

struct Printer<'a> {
    array: &'a HostArray,
    elided: bool,
    /// Elements are padded on the left to this many characters.
    width: usize,
}

impl Printer<'_> {
    /// The indices of a dimension that are shown; `None` stands for those left out.
    fn shown(&self, size: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let cut = self.elided && size > 2 * EDGE;
        let head = if cut { EDGE } else { size };
        let tail = if cut { size - EDGE } else { size };
        (0..head).map(Some).chain(cut.then_some(None)).chain((tail..size).map(Some))
    }

    fn element(&self, position: usize) -> String {
        let size = self.array.dtype().size();
        let mut text = String::new();
        if let Some(bytes) = self.array.data().get(position * size..(position + 1) * size) {
            write_text(self.array.dtype(), bytes, &mut text);
        }
        text
    }

    fn widest(&self, dim: usize, position: usize) -> usize {
        let dims = self.array.dims();
        let Some(&size) = dims.get(dim) else { return self.element(position).len() };
        if self.array.size() == 0 {
            return 0;
        }
        self.shown(size).flatten().map(|index| self.widest(dim + 1, position * size + index)).max().unwrap_or(0)
    }

    /// Prints what lies under the leading `dim` indices, of which `position` is the linear index.
    fn print(&self, dim: usize, position: usize, text: &mut String) {
        let dims = self.array.dims();
        let Some(&size) = dims.get(dim) else { return text.push_str(&self.element(position)) };
        text.push('[');
        if self.array.size() != 0 {
            let innermost = dim + 1 == dims.len();
            let indent = dim + 1;
            let mut column = indent;
            for (nth, index) in self.shown(size).enumerate() {
                let piece = match index {
                    None => "...".to_owned(),
                    Some(index) if innermost => format!("{:>1$}", self.element(position * size + index), self.width),
                    Some(index) => {
                        let mut piece = String::new();
                        self.print(dim + 1, position * size + index, &mut piece);
                        piece
                    }
                };
                let wraps = innermost && column + 1 + piece.len() >= LINE_WIDTH;
                if nth > 0 && innermost && !wraps {
                    text.push(' ');
                    column += 1;
                } else if nth > 0 {
                    let lines = if innermost { 1 } else { dims.len() - dim - 1 };
                    text.extend(std::iter::repeat_n('\n', lines));
                    text.extend(std::iter::repeat_n(' ', indent));
                    column = indent;
                }
                column += piece.len();
                text.push_str(&piece);
            }
        }
        text.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fill;
    use super::*;
    use crate::dtype::DType;

    fn iota(dtype: DType, dims: &[usize]) -> HostArray {
        HostArray::filled(Fill::Iota, 0, dtype, dims).unwrap()
    }

    #[test]
    fn brackets_nest_and_columns_align() {
        insta::assert_snapshot!(iota(DType::S32, &[]), @"0");
        insta::assert_snapshot!(iota(DType::S32, &[0, 4]), @"[]");
        insta::assert_snapshot!(iota(DType::Pred, &[3]), @"[False  True False]");
        insta::assert_snapshot!(iota(DType::S32, &[2, 2, 6]), @r"
        [[[ 0  1  2  3  4  5]
          [ 6  7  8  9 10 11]]

         [[12 13 14 15 16 17]
          [18 19 20 21 22 23]]]
        ");
        insta::assert_snapshot!(iota(DType::F32, &[30]), @r"
        [ 0.0  1.0  2.0  3.0  4.0  5.0  6.0  7.0  8.0  9.0 10.0 11.0 12.0 13.0 14.0
         15.0 16.0 17.0 18.0 19.0 20.0 21.0 22.0 23.0 24.0 25.0 26.0 27.0 28.0 29.0]
        ");
    }

    #[test]
    fn large_arrays_are_shown_by_their_edges() {
        let large = iota(DType::S32, &[2, 40, 50]);
        insta::assert_snapshot!(large, @r"
        [[[   0    1    2 ...   47   48   49]
          [  50   51   52 ...   97   98   99]
          [ 100  101  102 ...  147  148  149]
          ...
          [1850 1851 1852 ... 1897 1898 1899]
          [1900 1901 1902 ... 1947 1948 1949]
          [1950 1951 1952 ... 1997 1998 1999]]

         [[2000 2001 2002 ... 2047 2048 2049]
          [2050 2051 2052 ... 2097 2098 2099]
          [2100 2101 2102 ... 2147 2148 2149]
          ...
          [3850 3851 3852 ... 3897 3898 3899]
          [3900 3901 3902 ... 3947 3948 3949]
          [3950 3951 3952 ... 3997 3998 3999]]]
        ");
        insta::assert_snapshot!(iota(DType::S32, &[1001]), @"[   0    1    2 ...  998  999 1000]");
        assert_eq!(
            format!("{large:#}").matches(|c: char| c.is_ascii_digit()).count(),
            (0..4000).map(|n: u32| n.to_string().len()).sum::<usize>()
        );
        assert_eq!(iota(DType::U8, &[1000]).to_string().matches("...").count(), 0);
    }

    #[test]
    fn elements_of_every_type() {
        let mut text = String::new();
        for dtype in DType::all() {
            let random = HostArray::filled(Fill::Random { seed: 5 }, 0, dtype, &[4]).unwrap();
            text += &format!("{dtype} {random}\n");
        }
        insta::assert_snapshot!(text, @r"
        pred [ True False  True False]
        s1 [-1  0 -1  0]
        s2 [1 0 1 0]
        s4 [1 2 7 2]
        s8 [ 9 10  7  2]
        s16 [ 9 10  7  2]
        s32 [ 9 10  7  2]
        s64 [ 9 10  7  2]
        u1 [1 0 1 0]
        u2 [1 2 3 2]
        u4 [ 9 10  7  2]
        u8 [ 9 10  7  2]
        u16 [ 9 10  7  2]
        u32 [ 9 10  7  2]
        u64 [ 9 10  7  2]
        f4e2m1fn [0.0 0.0 0.5 0.0]
        f6e2m3fn [0.0 0.2 0.9 0.5]
        f6e3m2fn [ 0.0 0.25  0.9  0.5]
        f8e3m4 [0.25  0.8 0.97 0.88]
        f8e4m3 [ 0.5  0.6 0.94 0.75]
        f8e4m3b11fnuz [ 0.5  0.6 0.94 0.75]
        f8e4m3fn [ 0.5  0.6 0.94 0.75]
        f8e4m3fnuz [ 0.5  0.6 0.94 0.75]
        f8e5m2 [ 0.0 0.25  0.9  0.5]
        f8e5m2fnuz [ 0.0 0.25  0.9  0.5]
        f8e8m0fnu [0.03 0.02 0.06  0.2]
        f16 [0.6045  0.664  0.497  0.187]
        bf16 [  0.6 0.664 0.496 0.184]
        f32 [ 0.6048707 0.66409785 0.49739784 0.18702072]
        f64 [ 0.6048706863263056  0.6640978592755313 0.49739787723351925
         0.18702074054358586]
        c64 [ 0.6048707+0.66409785j 0.49739784+0.18702072j 0.57582235+0.21690482j
         0.55183035+0.08726561j]
        c128 [  0.6048706863263056+0.6640978592755313j
         0.49739787723351925+0.18702074054358586j
          0.5758224064331462+0.21690486672506415j
          0.5518303929516344+0.08726561741682393j]
        ");
        let special = [0x7fu8, 0xff, 0x80, 0x00, 0x01, 0x7e, 0xfe];
        let mut text = String::new();
        for dtype in DType::all().filter(|dtype| dtype.size() == 1 && dtype.name().starts_with('f')) {
            text += &format!("{dtype} {}\n", HostArray::new(dtype, vec![7], special.to_vec()).unwrap());
        }
        let halves: Vec<u8> = [0.1f32, 65504.0, f32::INFINITY, f32::NAN, -0.0, 6e-8]
            .iter()
            .flat_map(|&value| half::f16::from_f32(value).to_le_bytes())
            .collect();
        text += &format!("f16 {}\n", HostArray::new(DType::F16, vec![6], halves).unwrap());
        let complex: Vec<u8> =
            [1.5f32, -0.1, f32::NAN, f32::NEG_INFINITY].iter().flat_map(|value| value.to_le_bytes()).collect();
        text += &format!("c64 {}\n", HostArray::new(DType::C64, vec![2], complex).unwrap());
        insta::assert_snapshot!(text, @r"
        f4e2m1fn [-6.0 -6.0  0.0  0.0  0.5 -4.0 -4.0]
        f6e2m3fn [-7.5 -7.5  0.0  0.0  0.1 -7.0 -7.0]
        f6e3m2fn [-28.0 -28.0   0.0   0.0  0.06 -24.0 -24.0]
        f8e3m4 [ nan  nan -0.0  0.0 0.02  nan  nan]
        f8e4m3 [  nan   nan  -0.0   0.0 0.002   nan   nan]
        f8e4m3b11fnuz [  30.0  -30.0    nan    0.0 0.0001   28.0  -28.0]
        f8e4m3fn [   nan    nan   -0.0    0.0  0.002  450.0 -450.0]
        f8e4m3fnuz [ 240.0 -240.0    nan    0.0  0.001  220.0 -220.0]
        f8e5m2 [ nan  nan -0.0  0.0 2e-5  nan  nan]
        f8e5m2fnuz [ 60000.0 -60000.0      nan      0.0     8e-6  50000.0 -50000.0]
        f8e8m0fnu [  1.0   nan   2.0 6e-39 1e-38   0.5  2e38]
        f16 [    0.1 65500.0     inf     nan    -0.0    6e-8]
        c64 [1.5-0.1j nan-infj]
        ");
    }
}
