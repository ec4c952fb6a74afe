//! Streams that are being captured into graphs, in between other operations.

use gapless_proof::{Model, Op, Runner, as_test, ops, prove};

/// What is left out during a capture: work that another stream waits for, as the caller has to; and what has to wait for
/// streams before it unmaps, which is refused then.
fn is_allowed(op: &Op) -> bool {
    !matches!(
        op,
        Op::Write { .. }
            | Op::Read { .. }
            | Op::WriteRange { .. }
            | Op::ReadRange { .. }
            | Op::ShrinkRange { .. }
            | Op::TakeRange { .. }
            | Op::DropRange { .. }
            | Op::DropHandle { .. }
            | Op::CloseHandle
    )
}

/// Every few operations a capture begins or ends. Memory may be refused meanwhile, and nothing else: no capture is
/// broken, and nothing is lost by it.
#[test]
fn captures_come_and_go() {
    let show = |(world, ops): &(_, Vec<_>)| as_test(world, ops);
    prove(400, &ops::<Model>(80), show, |(world, ops)| {
        let mut runner = Runner::<Model>::new(world);
        let mut captured = vec![false; world.streams];
        for (number, op) in ops.iter().enumerate() {
            if number % 6 == 5 {
                let stream = number / 6 % world.streams;
                let device = runner.driver().inner().inner();
                let handle = runner.stream(u8::try_from(stream).expect("few streams"));
                if captured[stream] {
                    device.end_capture(handle)
                } else {
                    device.begin_capture(handle)
                }
                captured[stream] ^= true;
            }
            if !captured.contains(&true) {
                runner.step(*op);
            } else if is_allowed(op) {
                runner.step_loosely(*op);
            }
        }
        for stream in 0..world.streams {
            runner.driver().inner().inner().end_capture(runner.stream(u8::try_from(stream).expect("few streams")));
        }
        runner.finish();
    });
}
