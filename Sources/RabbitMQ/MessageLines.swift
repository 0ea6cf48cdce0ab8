/// The bodies of one message, a line each, and which of them are not settled yet. Pure.
///
/// A message is settled when all of its bodies are settled. Until then the broker may deliver it again, with all of its
/// bodies.
struct MessageLines: Sendable {
    /// The most bodies of one message: a mask has so many bits.
    static let max = 64
    private static let separator = UInt8(ascii: "\n")

    private var open: UInt64
    private(set) var isRejected = false

    /// - Parameter count: 1 to ``max``.
    init(count: Int) {
        open = count == Self.max ? .max : (1 << UInt64(count)) - 1
    }

    var isSettled: Bool { open == 0 }

    /// Settles one body. False, without effect, if the line is unknown or settled already.
    mutating func settle(_ line: Int, isRejected: Bool) -> Bool {
        let bit: UInt64 = (0..<Self.max).contains(line) ? 1 << UInt64(line) : 0
        guard open & bit != 0 else { return false }
        open &= ~bit
        // One rejected body takes the whole message to the dead letters. All its other bodies are settled by then.
        if isRejected { self.isRejected = true }
        return true
    }

    static func join(_ bodies: [String]) -> String { bodies.joined(separator: "\n") }

    /// Splits a message that `join` made. A message with more than ``max`` lines is not ours: it stays one body, which
    /// the consumer's owner refuses.
    static func split(_ message: [UInt8]) -> [[UInt8]] {
        guard message.contains(separator) else { return [message] }
        let lines = message.split(separator: separator, maxSplits: max, omittingEmptySubsequences: false)
        return lines.count <= max ? lines.map(Array.init) : [message]
    }
}
