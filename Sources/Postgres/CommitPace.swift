/// How long a group commit waits between two flushes, so that items that come in a stream share statements: each
/// statement costs the database and this process as much as a dozen items. From the start of a flush of several items
/// to the next flush `interval` passes, or `items` items come. An item that comes alone does not wait for others, and
/// neither does a failed batch that is tried again.
///
/// The interval grows with the duration of the flush. So a machine with much to do has fewer and larger statements,
/// which is less to do, and a machine with little to do answers soon.
public struct CommitPace: Sendable {
    private let shortest: Duration
    private let longest: Duration
    /// How many waiting items end the wait, for callers who come again only after an answer: so few callers must not
    /// wait for more. Nil, or any number above a crowd: only a crowd (`CommitQueue.crowd`) ends the wait.
    let items: Int?

    /// A flush may take one part in so many of the interval.
    private static let parts = 4

    public init(
        shortest: Duration = .milliseconds(5), longest: Duration = .milliseconds(40), items: Int? = nil
    ) {
        self.shortest = shortest
        self.longest = longest
        self.items = items
    }

    /// The time from the start of a flush that took so long to the start of the next.
    func interval(after flush: Duration) -> Duration { max(shortest, min(longest, flush * Self.parts)) }
}
