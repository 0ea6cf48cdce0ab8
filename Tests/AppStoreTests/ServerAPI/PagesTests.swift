import Foundation
import Synchronization
import Testing

@testable import AppStore

// Goal: Apple's lists are read to the end, with the same question for all pages, in one environment (AppleFacts 3.4,
// 3.6). Method: a server that gives pages by cursor, and its record of what it was asked.

@Suite struct PagesTests {
    private static let query = try! HistoryQuery(productIds: ["coins"], sort: .ascending)
    private static let production: [StoreEnvironment] = [.production]

    /// Answers by the cursor at the end of the path; "" where there is none.
    private static func pages(_ pages: [String: String]) -> @Sendable (LocalApple.Asked) -> LocalApple.Answer {
        { asked in
            let query = asked.path.split(separator: "?").dropFirst().first ?? ""
            let items = query.split(separator: "&").map { $0.split(separator: "=") }
            let cursor = items.first { $0[0] == "revision" || $0[0] == "paginationToken" }.map { String($0[1]) } ?? ""
            return pages[cursor].map { .json($0) } ?? ServerAPILab.error(4_000_005)
        }
    }

    @Test func `each page is asked for with the same query and the revision before it`() async throws {
        let answer = Self.pages([
            "": #"{"signedTransactions":["a","b"],"hasMore":true,"revision":"r1","appAppleId":9007199254740993}"#,
            "r1": #"{"signedTransactions":["b"],"hasMore":true,"revision":"r2"}"#,
            "r2": #"{"signedTransactions":[],"hasMore":false,"revision":"r3"}"#,
        ])
        try await LocalApple.serving(answer) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            let history = client.transactionHistory(ofCustomerWith: "1", Self.query, in: Self.production)
            for round in 1...2 {
                var pages: [[String]] = []
                var revisions: [String?] = []
                for try await answer in history {
                    pages.append(answer.value.signedTransactions)
                    revisions.append(answer.value.revision)
                    #expect(answer.environment == .production && answer.calls.count == 1)
                }
                // A transaction that changed meanwhile comes again, with its new data: the reader must compare both
                // "b".
                #expect(pages == [["a", "b"], ["b"], []])
                #expect(revisions == ["r1", "r2", "r3"], "the last one is where a later look begins")
                #expect(apple.requests.count == 3 * round)
            }
            let path = "/production/inApps/v2/history/1?productId=coins&sort=ASCENDING"
            #expect(apple.requests.prefix(3).map(\.path) == [path, path + "&revision=r1", path + "&revision=r2"])
        }
    }

    @Test func `3.1: the first page finds the environment, the others stay in it`() async throws {
        let answer = Self.pages([
            "": #"{"signedTransactions":["a"],"hasMore":true,"revision":"r1"}"#,
            "r1": #"{"signedTransactions":["b"],"hasMore":false}"#,
        ])
        try await LocalApple.serving(
            { $0.path.hasPrefix("/production") ? ServerAPILab.error(4_040_010) : answer($0) }
        ) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            var calls: [Int] = []
            for try await page in client.refundHistory(ofCustomerWith: "1", in: ServerAPILab.both) {
                #expect(page.environment == .sandbox)
                calls.append(page.calls.count)
            }
            #expect(calls == [2, 1])
            #expect(
                apple.requests.map(\.path) == [
                    "/production/inApps/v2/refund/lookup/1", "/sandbox/inApps/v2/refund/lookup/1",
                    "/sandbox/inApps/v2/refund/lookup/1?revision=r1",
                ])
        }
    }

    @Test func `3.6: each page of notifications is asked for with the same body`() async throws {
        let answer = Self.pages([
            "": #"{"notificationHistory":[{"signedPayload":"a"}],"hasMore":true,"paginationToken":"p1"}"#,
            // Apple leaves the token out on the last page.
            "p1": #"{"notificationHistory":[{"signedPayload":"b"}],"hasMore":false}"#,
        ])
        try await LocalApple.serving(answer) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            let query = try NotificationHistoryQuery(
                from: Date(timeIntervalSince1970: 1), to: Date(timeIntervalSince1970: 2), filter: .type("TEST"))
            var payloads: [String?] = []
            for try await page in client.notificationHistory(query, in: .sandbox) {
                payloads += page.value.notifications.map(\.signedPayload)
            }
            #expect(payloads == ["a", "b"])
            let path = "/sandbox/inApps/v1/notifications/history"
            #expect(apple.requests.map(\.path) == [path, path + "?paginationToken=p1"])
            #expect(Set(apple.requests.map(\.body)).count == 1 && apple.requests[0].body.isEmpty == false)
        }
    }

    @Test func `a list never ends early for a missing field, and never runs in a circle`() async throws {
        for (pages, expected, asked) in [
            // No field says whether there is more: the reader goes on until a page is empty.
            (
                [
                    "": #"{"signedTransactions":["a"],"revision":"r1"}"#,
                    "r1": #"{"signedTransactions":["b"],"revision":"r2"}"#,
                    "r2": #"{"signedTransactions":[],"revision":"r3"}"#,
                ], .success(["a", "b"]), 3
            ),
            (["": #"{"signedTransactions":["a"]}"#], .success(["a"]), 1), (["": "{}"], .success([]), 1),
            (["": #"{"signedTransactions":["a"],"hasMore":true}"#], .failure(.garbage), 1),
            // A value that says nothing is as good as no field (F15).
            (
                [
                    "": #"{"signedTransactions":["a"],"hasMore":"yes","revision":"r1"}"#,
                    "r1": #"{"signedTransactions":[],"revision":"r2"}"#,
                ], .success(["a"]), 2
            ),
            (
                [
                    "": #"{"signedTransactions":["a"],"hasMore":true,"revision":"r1"}"#,
                    "r1": #"{"signedTransactions":["a"],"hasMore":true,"revision":"r1"}"#,
                ], .failure(.garbage), 2
            ),
            (
                ["": #"{"signedTransactions":["a"],"hasMore":true,"revision":"lapsed"}"#],
                .failure(.api(code: APIErrorCode(rawValue: 4_000_005), httpStatus: 400)), 2
            ),
        ] as [([String: String], Result<[String], AppStoreError>, Int)] {
            try await LocalApple.serving(Self.pages(pages)) { apple, http in
                let client = try await ServerAPILab.client(http, apple.url)
                let outcome = await ServerAPILab.outcome { () throws(AppStoreFailure) in
                    var all: [String] = []
                    for try await page in client.transactionHistory(ofCustomerWith: "1", in: Self.production) {
                        all += page.value.signedTransactions
                    }
                    return all
                }
                #expect(outcome.mapError(\.error) == expected)
                #expect(apple.requests.count == asked)
            }
        }
    }

    @Test func `a list ends with its first error, and goes on where it was`() async throws {
        let isDown = Mutex(true)
        let answer = Self.pages([
            "": #"{"signedTransactions":["a"],"hasMore":true,"revision":"r1"}"#,
            "r1": #"{"signedTransactions":["b"],"hasMore":false,"revision":"r2"}"#,
        ])
        try await LocalApple.serving(
            { $0.path.contains("revision") && isDown.withLock { $0 } ? .json("", status: 503) : answer($0) }
        ) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            var iterator = client.transactionHistory(ofCustomerWith: "1", in: ServerAPILab.both).makeAsyncIterator()
            let first = try #require(try await iterator.next(isolation: nil))
            do throws(AppStoreFailure) {
                _ = try await iterator.next(isolation: nil)
                Issue.record("a page came from a server that is down")
            } catch {
                #expect(error.error == .httpStatus(503) && error.isRetryable)
            }
            #expect(try await iterator.next(isolation: nil) == nil)
            isDown.withLock { $0 = false }
            var rest: [String] = []
            for try await page in client.transactionHistory(
                ofCustomerWith: "1", after: first.value.revision, in: [first.environment])
            {
                rest += page.value.signedTransactions
            }
            #expect(rest == ["b"])
        }
    }
}
