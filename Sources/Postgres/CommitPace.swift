/// How what comes in a stream shares its statements, each of which costs the database and us as much as a dozen
/// items: from the start of a flush of several to the next so much time passes, or so many items come. A lone
/// caller waits for nobody, nor does what goes again.
///
/// The time grows with what the flush took, so that a machine with much to do has fewer and larger statements, which
/// is less to do, and one with little to do has answers soon.
public struct CommitPace: Sendable {
    private let shortest: Duration
    private let longest: Duration
    /// For callers who come again only when they are answered: those few must not wait for more. Nil, and whatever
    /// is more than one: a crowd.
    let items: Int?

    /// Of the time, a flush may take one part in so many.
    private static let parts = 4

    public init(
        shortest: Duration = .milliseconds(5), longest: Duration = .milliseconds(40), items: Int? = nil
    ) {
        self.shortest = shortest
        self.longest = longest
        self.items = items
    }

    /// From the start of a flush that took so long to the next.
    func interval(after flush: Duration) -> Duration { max(shortest, min(longest, flush * Self.parts)) }
}
