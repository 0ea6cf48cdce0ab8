/// A page of a list that Apple gives in parts.
package protocol Page: Sendable {
    /// The query item that asks for what comes after a page.
    static var cursorName: String { get }
    /// What to send in it; nil on the last page.
    var next: String? { get }
}

/// A list at Apple, fetched page by page as it is read.
///
/// The question is fixed when the list is made, so that each page is asked for with the same one, as Apple demands; the
/// environment is fixed once the first page has told it. Reading the sequence again asks again. The sequence ends with
/// its first error. To go on after that, or after a restart, make the same list `after` the last page's cursor, in the
/// environment of that page's answer.
///
/// At most one page is in memory. A page whose cursor leads back to itself is `.garbage`, not an endless list.
package struct Pages<Content: Page>: AsyncSequence, Sendable {
    package typealias Element = ServerAPIClient.Answer<Content>
    package typealias Failure = AppStoreFailure

    private let client: ServerAPIClient
    private let question: ServerAPIClient.Request<Content>
    private let environments: [StoreEnvironment]
    private let start: String?

    init(
        _ client: ServerAPIClient, _ question: ServerAPIClient.Request<Content>, after start: String?,
        in environments: [StoreEnvironment]
    ) {
        self.client = client
        self.question = question
        self.environments = environments
        self.start = start
    }

    package func makeAsyncIterator() -> AsyncIterator {
        AsyncIterator(client: client, question: question, environments: environments, cursor: start)
    }

    package struct AsyncIterator: AsyncIteratorProtocol {
        fileprivate let client: ServerAPIClient
        fileprivate let question: ServerAPIClient.Request<Content>
        fileprivate var environments: [StoreEnvironment]
        fileprivate var cursor: String?
        private var isOver = false

        fileprivate init(
            client: ServerAPIClient, question: ServerAPIClient.Request<Content>, environments: [StoreEnvironment],
            cursor: String?
        ) {
            self.client = client
            self.question = question
            self.environments = environments
            self.cursor = cursor
        }

        package mutating func next(
            isolation actor: isolated (any Actor)? = #isolation
        ) async throws(AppStoreFailure) -> Element? {
            guard !isOver else { return nil }
            isOver = true
            var question = question
            if let cursor { question.query.append(.init(name: Content.cursorName, value: cursor)) }
            let answer = try await client.ask(question, in: environments)
            if let next = answer.value.next {
                guard next != cursor else { throw AppStoreFailure(.garbage, calls: answer.calls) }
                environments = [answer.environment]
                cursor = next
                isOver = false
            }
            return answer
        }
    }
}
