//! Loops, branches and tuples.

use std::panic::Location;

use super::graph::{OpId, Scope, Turns};
use super::{Builder, Op};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloInstructionCommon, HloInstructionProto, SharedShape};

impl<'b> Op<'b> {
    /// An element of a tuple.
    #[track_caller]
    pub fn element(self, index: usize) -> Op<'b> {
        let element = HloInstructionProto::from(HloInstructionCommon {
            opcode: "get-tuple-element".into(),
            tuple_index: index as i64,
            ..Default::default()
        });
        self.builder.push(element, &[self])
    }

    /// The slice along the first dimension with an index that is known only when the program runs.
    #[track_caller]
    fn slice_at(self, index: Op<'b>) -> Op<'b> {
        let mut sizes = self.dims();
        let zero = self.builder.scalar(DType::S32, 0);
        let starts: Vec<Op<'b>> = (0..sizes.len()).map(|dim| if dim == 0 { index } else { zero }).collect();
        if let Some(first) = sizes.first_mut() {
            *first = 1;
        }
        self.dynamic_slice(&starts, &sizes).squeeze(&[0])
    }

    #[track_caller]
    pub(super) fn elements(self, count: usize) -> Vec<Op<'b>> {
        let mut elements = Vec::with_capacity(count);
        for index in 0..count {
            elements.push(self.element(index));
        }
        elements
    }
}

impl Builder {
    /// Several values as one.
    #[track_caller]
    pub fn tuple<'b>(&'b self, elements: &[Op<'b>]) -> Op<'b> {
        self.push(HloInstructionProto::new("tuple"), elements)
    }

    /// A loop over a state of several arrays, as `jax.lax.while_loop`: while `condition` of the state is true, `body`
    /// makes the next one of it, of the same shapes. Both may use values from outside of the loop.
    ///
    /// As in JAX, there are no derivatives by way of it, as nobody knows how often it runs: see [`Builder::scan`] and
    /// [`Builder::fori_loop`].
    ///
    /// ```
    /// use spmd_run::builder::Builder;
    /// use spmd_run::dtype::DType::{F32, S32};
    ///
    /// let b = Builder::new("power");
    /// let (x, times) = (b.parameter("x", F32, &[3]), b.parameter("times", S32, &[]));
    /// let start = [b.scalar(S32, 0), x.ones_like()];
    /// let end = b.while_loop(&start, |state| state[0].lt(times), |state| vec![state[0] + 1, state[1] * x]);
    /// b.build(&[end[1]])?;
    /// # Ok::<(), spmd_run::builder::BuildError>(())
    /// ```
    #[track_caller]
    pub fn while_loop<'b>(
        &'b self,
        init: &[Op<'b>],
        condition: impl FnOnce(&[Op<'b>]) -> Op<'b>,
        body: impl FnOnce(&[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        self.repeat("while_loop", 0, init, condition, body)
            .map_or_else(|| vec![self.failed(); init.len()], |made| made.elements(init.len()))
    }

    /// The loop itself, whose result is a tuple of the state and what it captures; `None` after an error. Messages call it
    /// `what` and do not count the first `hidden` arrays of the state.
    #[track_caller]
    fn repeat<'b>(
        &'b self,
        what: &str,
        hidden: usize,
        init: &[Op<'b>],
        condition: impl FnOnce(&[Op<'b>]) -> Op<'b>,
        body: impl FnOnce(&[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Option<Op<'b>> {
        let location = Location::caller();
        let shapes: Vec<SharedShape> = init.iter().map(|value| value.shape()).collect::<Option<_>>()?;

        let (checks, state) = self.open_body("condition", &shapes, location);
        let root = self.import_result("condition", condition(&state), location);
        self.graph().close(checks, root);
        root?;
        let known = self.graph().computation(checks).captures.clone();

        let (steps, state) = self.open_body("body", &shapes, location);
        let captured = self.graph().capture_like(steps, &known, location);
        let next = body(&state);
        let root = captured.and_then(|()| self.next_state(steps, &shapes, &next, hidden, location));
        let root = self.handle(what, root, location).id;
        self.graph().close(steps, root);
        root?;

        let (captures, state_shape) = {
            let graph = self.graph();
            let body = graph.computation(steps);
            (body.captures.clone(), (*body.proto.instructions[0].shape).clone())
        };
        self.graph().widen(checks, state_shape);
        let outer = captures.iter().map(|&(outer, _)| Op { builder: self, id: Some(outer) });
        let start = self.tuple(&init.iter().copied().chain(outer).collect::<Vec<_>>());
        let instruction = HloInstructionProto::new("while");
        Some(self.push_calling(instruction, &[start], &[steps, checks]))
    }

    /// A loop that runs `body` for each index from `start` to before `end`, as `jax.lax.fori_loop`: it makes the next state
    /// of the index, an `s32`, and the state. It has derivatives: what they need of each turn is kept.
    #[track_caller]
    pub fn fori_loop<'b>(
        &'b self,
        start: i32,
        end: i32,
        init: &[Op<'b>],
        body: impl FnOnce(Op<'b>, &[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        let made = self.count_through("fori_loop", start, end, init, body);
        made.map_or_else(|| vec![self.failed(); init.len()], |made| made.elements(init.len() + 1).split_off(1))
    }

    #[track_caller]
    fn count_through<'b>(
        &'b self,
        what: &str,
        start: i32,
        end: i32,
        init: &[Op<'b>],
        body: impl FnOnce(Op<'b>, &[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Option<Op<'b>> {
        let state = [&[self.scalar(DType::S32, start)], init].concat();
        let made = self.repeat(
            what,
            1,
            &state,
            |state| state[0].lt(end),
            |state| {
                let next = body(state[0], &state[1..]);
                [vec![state[0] + 1], next].concat()
            },
        )?;
        let count = end.saturating_sub(start).max(0);
        self.graph().loops.insert(made.id?, Turns { start, count });
        Some(made)
    }

    /// A loop over the first dimension of some arrays, as `jax.lax.scan`: `body` makes of a state and of one slice of each
    /// array the next state and some results. Returns the last state, and the results of all turns, stacked along a new
    /// first dimension. For `length=n` and no arrays, pass `b.arange(S32, n)`.
    ///
    /// It has derivatives: what they need of each turn is kept, beside what `body` computes from constants, the arrays' slices
    /// and values around the loop by moving, adding and multiplying, which is computed again.
    ///
    /// ```
    /// use spmd_run::builder::Builder;
    /// use spmd_run::dtype::DType::F32;
    ///
    /// let b = Builder::new("recurrent");
    /// let (w, inputs) = (b.parameter("w", F32, &[4, 4]), b.parameter("inputs", F32, &[10, 4]));
    /// let (last, all) = b.scan(&[b.zeros(F32, &[4])], &[inputs], |state, input| {
    ///     let next = (w.matmul(state[0]) + input[0]).tanh();
    ///     (vec![next], vec![next])
    /// });
    /// assert_eq!((last[0].dims(), all[0].dims()), (vec![4], vec![10, 4]));
    /// b.build(&b.grad(last[0].sum(&[]), &[w]))?;
    /// # Ok::<(), spmd_run::builder::BuildError>(())
    /// ```
    #[track_caller]
    pub fn scan<'b>(
        &'b self,
        init: &[Op<'b>],
        arrays: &[Op<'b>],
        body: impl FnOnce(&[Op<'b>], &[Op<'b>]) -> (Vec<Op<'b>>, Vec<Op<'b>>),
    ) -> (Vec<Op<'b>>, Vec<Op<'b>>) {
        let location = Location::caller();
        let failed = || (vec![self.failed(); init.len()], Vec::new());
        let Some(turns) = self.common_length(arrays) else { return failed() };
        let mut results = Vec::new();
        let made = self.count_through("scan", 0, turns, init, |index, state| {
            let mut slices = Vec::with_capacity(arrays.len());
            for array in arrays {
                slices.push(array.slice_at(index));
            }
            let (next, made) = body(state, &slices);
            results = made.iter().map(|made| self.import_result("scan", *made, location)).collect();
            next
        });
        let Some(made) = made else { return failed() };
        let last = made.elements(init.len() + 1).split_off(1);
        let mut stacked = Vec::with_capacity(results.len());
        for result in results {
            let Some(result) = result else { return failed() };
            let saved = self.graph().save(result.computation, result, location);
            stacked.push(self.handle("scan", saved, location));
        }
        (last, stacked)
    }

    /// The size of the first dimension, which all arrays have in common.
    #[track_caller]
    fn common_length(&self, arrays: &[Op<'_>]) -> Option<i32> {
        let mut lengths = Vec::with_capacity(arrays.len());
        for array in arrays {
            lengths.push(array.array("scan")?.1.first().copied());
        }
        let first = lengths.first().copied().flatten().and_then(|first| i32::try_from(first).ok());
        match first {
            Some(first) if first > 0 && lengths.iter().all(|&length| length == Some(first.into())) => Some(first),
            _ => {
                let shapes: Vec<String> = arrays.iter().map(|array| array.text()).collect();
                let shapes = if shapes.is_empty() {
                    "there are none: b.arange(S32, n) makes n turns, as does fori_loop".to_owned()
                } else {
                    shapes.join(", ")
                };
                self.fail("scan", format!("the arrays must have a first dimension, the same and not 0: {shapes}"));
                None
            }
        }
    }

    /// One of two computations, as `jax.lax.cond`: only the one that the predicate, a scalar `pred`, chooses is run. Both
    /// may use values from outside, and give arrays of the same shapes.
    #[track_caller]
    pub fn cond<'b>(
        &'b self,
        predicate: Op<'b>,
        on_true: impl FnOnce() -> Vec<Op<'b>>,
        on_false: impl FnOnce() -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        let location = Location::caller();
        let (yes, left) = self.branch("on_true", on_true, location);
        let (no, right) = self.branch("on_false", on_false, location);
        let count = left.as_ref().map_or(0, |(_, count)| *count);
        let (Some((left, _)), Some((right, _))) = (left, right) else { return vec![self.failed(); count] };
        let operands = [predicate, self.tuple(&left), self.tuple(&right)];
        let instruction = HloInstructionProto::new("conditional");
        self.push_calling(instruction, &operands, &[yes, no]).elements(count)
    }

    /// Builds a branch; returns it with what it captures and how many results it has.
    #[allow(clippy::type_complexity, reason = "it is taken apart at once")]
    fn branch<'b>(
        &'b self,
        name: &str,
        body: impl FnOnce() -> Vec<Op<'b>>,
        location: &'static Location<'static>,
    ) -> (u32, Option<(Vec<Op<'b>>, usize)>) {
        let (computation, _) = self.open_body(name, &[], location);
        let results = body();
        let mut own = Vec::with_capacity(results.len());
        for result in &results {
            own.extend(self.import_result(name, *result, location));
        }
        let root = if own.len() == results.len() { self.graph().push(tuple(), &own, &[], location).ok() } else { None };
        let mut graph = self.graph();
        graph.close(computation, root);
        if root.is_none() {
            return (computation, None);
        }
        let captures = graph.computation(computation).captures.clone();
        let outer = captures.iter().map(|&(outer, _)| Op { builder: self, id: Some(outer) }).collect();
        (computation, Some((outer, results.len())))
    }

    /// Starts a computation whose parameter is a tuple of these, and more as it needs them.
    fn open_body<'b>(
        &'b self,
        name: &str,
        shapes: &[SharedShape],
        location: &'static Location<'static>,
    ) -> (u32, Vec<Op<'b>>) {
        let mut graph = self.graph();
        let computation = graph.open(name, Scope::Body { fixed: shapes.len() }, None);
        let parameter = graph.argument(shape::tuple(shapes.iter().map(|shape| (**shape).clone()).collect()), location);
        let mut state = Vec::with_capacity(shapes.len());
        for index in 0..shapes.len() {
            let element = HloInstructionProto::from(HloInstructionCommon {
                opcode: "get-tuple-element".into(),
                tuple_index: index as i64,
                ..Default::default()
            });
            let parameter = parameter.clone();
            state.push(parameter.and_then(|parameter| graph.push(element, &[parameter], &[], location)));
        }
        drop(graph);
        (computation, state.into_iter().map(|element| self.handle(name, element, location)).collect())
    }

    /// The tuple that a loop's body returns.
    fn next_state(
        &self,
        body: u32,
        shapes: &[SharedShape],
        next: &[Op<'_>],
        hidden: usize,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        if next.len() != shapes.len() {
            let (expected, found) = (shapes.len() - hidden, next.len().saturating_sub(hidden));
            return Err(format!("the state has {expected} arrays, and the body returns {found}"));
        }
        let mut own = Vec::with_capacity(next.len());
        for (index, (next, shape)) in next.iter().zip(shapes).enumerate() {
            let next = self.import_result("while", *next, location).ok_or("the body could not be built")?;
            let found = (*self.graph().instruction(next).shape).clone();
            if !shape::compatible(&found, shape) {
                let (expected, found) = (shape::text_without_layout(shape), shape::text_without_layout(&found));
                let index = index.saturating_sub(hidden);
                return Err(format!("array {index} of the state is {expected}, and the body makes {found} of it"));
            }
            own.push(next);
        }
        let mut graph = self.graph();
        own.extend(graph.computation(body).captures.iter().map(|&(_, inner)| inner));
        graph.push(tuple(), &own, &[], location)
    }
}

fn tuple() -> HloInstructionProto {
    HloInstructionProto::new("tuple")
}
