use super::*;
use crate::rendezvous::wire::MAX_NAME;

fn state(process_count: u32) -> State {
    State::new(
        Instant::now(),
        JobId::default(),
        process_count,
        "1".into(),
        Heartbeat::default(),
        Vec::new(),
        Arc::default(),
    )
}

fn join(state: &mut State, process_index: u32) -> mpsc::UnboundedReceiver<Outgoing> {
    let (outbox, sent) = mpsc::unbounded_channel();
    let join = Join {
        version: "1".into(),
        process_index,
        process_count: state.process_count,
        host: format!("host-{process_index}"),
        slice: 0,
        timeout: Duration::MAX,
    };
    state.join(Instant::now(), 1, &join, outbox, ([127, 0, 0, 1], 1).into()).unwrap();
    sent
}

fn sent(receiver: &mut mpsc::UnboundedReceiver<Outgoing>) -> Vec<String> {
    let items = std::iter::from_fn(|| receiver.try_recv().ok());
    let texts = items.filter_map(|item| match item {
        Outgoing::Frame(frame) => Some(format!("{} {:?}", frame.call, frame.message)),
        Outgoing::Mark(_) => None,
    });
    texts.collect()
}

/// A job that all have joined and been welcomed to.
fn complete<const N: usize>() -> (State, [mpsc::UnboundedReceiver<Outgoing>; N]) {
    let mut state = state(N as u32);
    let mut receivers = std::array::from_fn(|process| join(&mut state, process as u32));
    receivers.iter_mut().for_each(|receiver| assert_eq!(sent(receiver).len(), 2));
    (state, receivers)
}

#[test]
fn the_waiting_line_names_who_is_missing() {
    let mut state = state(4);
    let _kept = [0, 3].map(|process| join(&mut state, process));
    insta::assert_snapshot!(state.waiting_line().unwrap(), @"waiting 2/4, missing process 1, 2");
    let _kept = [1, 2].map(|process| join(&mut state, process));
    assert_eq!(state.waiting_line(), None);
}

#[test]
fn process_0_learns_of_an_abort_after_the_others() {
    let (mut state, mut receivers) = complete::<3>();
    state.lost(2, Loss::Closed);
    let [host, other, _] = receivers.each_mut().map(sent);
    assert_eq!((host.len(), other.len()), (0, 1));
    let last_words = state.take_last_words().unwrap();
    assert_eq!(last_words.others.len(), 1);
    last_words.say();
    assert_eq!(sent(&mut receivers[0]), other);
    state.lost(1, Loss::Closed);
    assert!(state.take_last_words().is_none(), "the first failure is the cause");
}

#[test]
fn process_0_leaves_when_the_other_connections_have_closed() {
    let (mut state, mut receivers) = complete::<3>();
    let now = Instant::now();
    for process in [0, 2, 1] {
        state.handle(now, process, Frame::new(7, Request::Goodbye { timeout: Duration::MAX }));
    }
    let done = vec!["7 Done".to_owned()];
    assert_eq!(receivers.each_mut().map(sent), [vec![], done.clone(), done.clone()]);
    state.lost(1, Loss::Closed);
    assert_eq!(sent(&mut receivers[0]), [""; 0]);
    state.lost(2, Loss::Closed);
    assert_eq!(sent(&mut receivers[0]), done);
}

#[test]
fn process_0_does_not_wait_for_a_connection_that_never_closes() {
    let (mut state, mut receivers) = complete::<2>();
    let now = Instant::now();
    for process in [0, 1] {
        state.handle(now, process, Frame::new(7, Request::Goodbye { timeout: Duration::MAX }));
    }
    assert_eq!(state.next_deadline(), Some(now + LAST_CLOSE));
    state.expire(now + LAST_CLOSE);
    assert_eq!(sent(&mut receivers[0]), ["7 Done"]);
}

#[test]
fn what_cannot_be_served_is_rejected() {
    let (mut state, mut receivers) = complete::<2>();
    let now = Instant::now();
    let long = "x".repeat(MAX_NAME + 1);
    let timeout = Duration::from_secs(1);
    let requests = [
        Request::Put { key: long.clone() },
        Request::Barrier { name: long, timeout },
        Request::Barrier { name: "b".into(), timeout },
        Request::Barrier { name: "b".into(), timeout },
    ];
    for (call, request) in requests.into_iter().enumerate() {
        state.handle(now, 0, Frame::new(call as u64, request));
    }
    insta::assert_snapshot!(sent(&mut receivers[0]).join("\n"), @r#"
    0 Rejected("a key of 1025 bytes is too long: the limit is 1024")
    1 Rejected("a name of 1025 bytes is too long: the limit is 1024")
    3 Rejected("process 0 is already at barrier 'b'")
    "#);
}

proptest::proptest! {
    #[test]
    fn no_messages_of_members_do_harm(headers in proptest::collection::vec(proptest::collection::vec(0..20_u8, 2..40), 0..8)) {
        let frame = |header: &Vec<u8>| [&[header.len() as u8, 0, 0, 0, 0, 0, 0, 0], &header[..]].concat();
        take_untrusted(&headers.iter().flat_map(frame).collect::<Vec<_>>());
    }
}
