/// How many calls a host gets at the same time, learned from its answers. A pure value.
///
/// The limit begins at ``start`` and grows by ``growth`` with each answer, fourfold in the time of an answer, until the
/// first setback or ``callsMax``: 2,000 calls at answers of 2 s after 8 s. From then on it changes in rounds, and a
/// round has as many answers as the limit has calls. After each round the limit grows by one call. The limit falls by a
/// tenth as soon as more of a round has failed than one in ``tolerated``: a single failure below 20 calls, the fourth
/// at 64. So Apple's everyday share of errors costs nothing, and trouble brings the limit down to one call within as
/// many failures as calls were out.
///
/// A failure is a 429, 5xx, a time-out or no answer. Answers that are only slow do not count: on a good day Apple's
/// answers take between 0.1 s and 10 s, whatever we send.
package struct ConcurrencyLimit: Sendable, Equatable {
    package static let start = 8
    package static let growth = 3
    package static let cut = 0.9
    package static let tolerated = 20

    package let callsMax: Int
    /// 1 ... callsMax.
    package private(set) var calls: Int
    /// Whether there was no setback yet, so that it is not known how many calls the host takes.
    package private(set) var isRamping: Bool
    /// Whether the host takes fewer calls than it may be asked.
    package var isCut: Bool { !isRamping && calls < callsMax }
    /// Answers of this round.
    private var answers = 0
    private var failures = 0

    /// - Parameter callsMax: at least 1.
    package init(callsMax: Int) {
        self.callsMax = max(1, callsMax)
        calls = min(Self.start, self.callsMax)
        isRamping = calls < self.callsMax
    }

    /// - Parameter inFlight: how many calls were out when this one was answered, this one included. While less than
    ///   half of the limit is used, success says nothing about a higher limit.
    package mutating func record(failed: Bool, inFlight: Int) {
        if failed {
            failures += 1
            if failures > calls / Self.tolerated {
                calls = max(1, Int(Double(calls) * Self.cut))
                isRamping = false
                beginRound()
                return
            }
        } else if inFlight * 2 < calls {
            return
        } else if isRamping {
            calls = min(callsMax, calls + Self.growth)
            isRamping = calls < callsMax
        }
        answers += 1
        guard answers >= calls else { return }
        calls = min(callsMax, calls + 1)
        beginRound()
    }

    private mutating func beginRound() {
        (answers, failures) = (0, 0)
    }
}
