import NIOCore
import Purchases

/// Signed transactions ready to be posted, fetched ahead of time so that no sender waits for a purchase to be made.
///
/// Belongs to one event loop. The source works elsewhere: it takes milliseconds for a batch, and the senders must not
/// wait so long.
final class TokenStock {
    /// Tokens fetched at a time: about 4 MB.
    static let batch = 1000
    /// With fewer tokens than this the next batch is fetched.
    private static let lowWater = 2000

    struct Token {
        /// The token's number, from 0, in the order in which senders take tokens.
        let number: Int
        let text: ByteBuffer
    }

    enum Offer {
        case token(Token)
        /// The source is slower than the load: ask again with ``whenMore(_:)``.
        case later
        /// No token is left (``isUsedUp``, ``failure`` or the limit say why).
        case none
    }

    /// Returns up to so many tokens; fewer only at the end.
    typealias Source = @concurrent @Sendable (Int) async throws -> [ByteBuffer]

    private let source: Source
    private let limit: Int
    private let loop: any EventLoop
    private var tokens: [ByteBuffer] = []
    private var taken = 0
    /// The number of removed tokens before `tokens[0]`.
    private var dropped = 0
    private var waiting: [() -> Void] = []
    private var isAtEnd = false
    /// The fetch under way: the caller must wait for its end before it ends the loop.
    private(set) var fetch: Task<Void, Never>?
    /// Whether a sender asked for a token when the source had no more.
    private(set) var isUsedUp = false
    private(set) var failure: (any Error)?
    /// The number of times that a sender had to wait for a token, because the source was slower than the load.
    private(set) var waits = 0

    /// - Parameter limit: the most tokens to fetch.
    init(limit: Int, source: @escaping Source, loop: any EventLoop) {
        self.limit = limit
        self.source = source
        self.loop = loop
    }

    /// Fetches until there is enough for a start, then calls `done`.
    func fill(then done: @escaping () -> Void) {
        if isClosed || tokens.count >= min(Self.lowWater, limit) {
            done()
        } else {
            whenMore { self.fill(then: done) }
        }
    }

    func next() -> Offer {
        let index = taken - dropped
        if index < tokens.count {
            defer { trim() }
            taken += 1
            if tokens.count - index <= Self.lowWater, !isClosed, fetch == nil { startFetch() }
            return .token(Token(number: taken - 1, text: tokens[index]))
        }
        if isClosed {
            isUsedUp = isAtEnd
            return .none
        }
        waits += 1
        return .later
    }

    /// Calls back when the next batch is there, or when none comes.
    func whenMore(_ ask: @escaping () -> Void) {
        waiting.append(ask)
        if fetch == nil { startFetch() }
    }

    private var isClosed: Bool { isAtEnd || failure != nil || dropped + tokens.count >= limit }

    private func startFetch() {
        let count = min(Self.batch, limit - dropped - tokens.count)
        let (source, loop, stock) = (source, loop, NIOLoopBound(self, eventLoop: loop))
        fetch = Task {
            do {
                let more = try await source(count)
                loop.execute { stock.value.fetched(.success(more), of: count) }
            } catch {
                loop.execute { stock.value.fetched(.failure(error), of: count) }
            }
        }
    }

    private func fetched(_ result: Result<[ByteBuffer], any Error>, of count: Int) {
        fetch = nil
        switch result {
        case .success(let more):
            tokens.append(contentsOf: more)
            if more.count < count { isAtEnd = true }
        case .failure(let error):
            failure = error
        }
        let asking = waiting
        waiting = []
        for ask in asking { ask() }
    }

    /// Removes tokens that were handed out, a batch at a time.
    private func trim() {
        guard taken - dropped >= Self.batch else { return }
        tokens.removeSubrange(..<(taken - dropped))
        dropped = taken
    }
}
