/// The bodies of one message, a line each, and which of them nobody has settled yet. Pure.
///
/// A message is settled when all of its bodies are: until then the broker brings it again, with all of them.
struct MessageLines: Sendable {
    /// As many as a mask has bits.
    static let max = 64
    private static let separator = UInt8(ascii: "\n")

    private var open: UInt64
    private(set) var isRejected = false

    /// - Parameter count: 1 to ``max``.
    init(count: Int) {
        open = count == Self.max ? .max : (1 << UInt64(count)) - 1
    }

    var isSettled: Bool { open == 0 }

    /// False, without effect, if the line is unknown or settled already.
    mutating func settle(_ line: Int, isRejected: Bool) -> Bool {
        let bit: UInt64 = (0..<Self.max).contains(line) ? 1 << UInt64(line) : 0
        guard open & bit != 0 else { return false }
        open &= ~bit
        // What cannot be handled takes its neighbours to the dead letters, where they are settled already.
        if isRejected { self.isRejected = true }
        return true
    }

    static func join(_ bodies: [String]) -> String { bodies.joined(separator: "\n") }

    /// What `join` joined. More lines than travel together are no message of ours: one body, for the consumer to refuse.
    static func split(_ message: [UInt8]) -> [[UInt8]] {
        guard message.contains(separator) else { return [message] }
        let lines = message.split(separator: separator, maxSplits: max, omittingEmptySubsequences: false)
        return lines.count <= max ? lines.map(Array.init) : [message]
    }
}
