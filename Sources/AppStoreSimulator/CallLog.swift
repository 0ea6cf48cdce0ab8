import Synchronization

/// One call that the simulator saw on Apple's side of its API.
package struct SimulatorCall: Sendable, Equatable {
    /// Counts from 1 since the start, in order of the answers.
    package let number: Int
    package let service: SimulatedService
    package let environment: StoreEnvironment
    /// When the request was complete, UNIX milliseconds.
    package let at: Int64
    /// How long the client waited for the answer.
    package let milliseconds: Int64
    /// The ids that the call asked about: the path's id, or the receipt's first 20.
    package let transactionIds: [String]
    /// First 16 hexadecimal digits of SHA-256 of `receipt-data`.
    package let receiptHash: String?
    /// HTTP status answered; nil: the connection was closed without an answer.
    package let status: Int?
    /// verifyReceipt's `status` or the API's `errorCode`; nil: none in the answer, or success of the API.
    package let code: Int?
    /// The kinds of the faults that touched the call, latency first.
    package let faults: [String]

    func write(_ json: inout JSONWriter) {
        json.field("number", number)
        json.field("service", service.rawValue)
        json.field("environment", environment.rawValue)
        json.field("at", at)
        json.field("milliseconds", milliseconds)
        json.field("transactionIds", array: { array in for id in transactionIds { array.element(id) } })
        json.field("receiptHash", ifPresent: receiptHash)
        json.field("status", ifPresent: status)
        json.field("code", ifPresent: code)
        json.field("faults", array: { array in for fault in faults { array.element(fault) } })
    }
}

/// The last 100,000 calls, and how many there were in all.
final class CallLog: Sendable {
    static let callsMax = 100_000

    private struct State {
        /// A ring buffer: call `n` stands at `(n - 1) % callsMax`.
        var ring: [SimulatorCall] = []
        var total = 0
        var counts: [SimulatedService: Int] = [:]
        var open = 0
        var openMax = 0
    }

    private let state = Mutex(State())

    /// Counts a call that has no answer yet. The caller must call ``end(_:)`` afterwards.
    func begin() {
        state.withLock { state in
            state.open += 1
            state.openMax = max(state.openMax, state.open)
        }
    }

    /// Stores the call that `make` builds with its number.
    func end(_ make: (Int) -> SimulatorCall) {
        state.withLock { state in
            state.open -= 1
            state.total += 1
            let call = make(state.total)
            state.counts[call.service, default: 0] += 1
            if state.ring.count < Self.callsMax {
                state.ring.append(call)
            } else {
                state.ring[(call.number - 1) % Self.callsMax] = call
            }
        }
    }

    /// How many calls wait for their answer now, and the most that ever waited at once.
    var open: (now: Int, most: Int) { state.withLock { ($0.open, $0.openMax) } }

    var counts: [SimulatedService: Int] { state.withLock(\.counts) }

    /// The calls with a number above `after`, oldest first, at most `limit`.
    func calls(after: Int = 0, limit: Int = callsMax) -> [SimulatorCall] {
        state.withLock { state in
            let first = max(after, state.total - state.ring.count, 0)
            guard first < state.total else { return [] }
            let last = min(state.total, first + min(max(0, limit), Self.callsMax))
            return (first..<last).map { state.ring[$0 % Self.callsMax] }
        }
    }
}
