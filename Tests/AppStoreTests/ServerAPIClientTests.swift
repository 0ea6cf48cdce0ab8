import AsyncHTTPClient
import Crypto
import Foundation
import Synchronization
import Testing

@testable import AppStore

// Goal: one question to the App Store Server API ends in a JWS, or in the one case that says what to do (requirements
// P13 to P15). Method: a real HTTP server for both environments, and the public half of the key to read the token.

@Suite struct ServerAPIClientTests {
    private static let key = P256.Signing.PrivateKey()
    private static let found = LocalApple.Answer.json(#"{"signedTransactionInfo":"a.b.c","new":1}"#)
    private static let unauthorized = LocalApple.Answer.json("Unauthenticated", status: 401)

    private static func error(_ code: Int64) -> LocalApple.Answer {
        .json(#"{"errorCode":\#(code),"errorMessage":"secret text"}"#, status: Int(code / 10_000))
    }

    private static func client(
        _ http: HTTPClient, _ url: String, now: @escaping @Sendable () -> Date = { Date() }
    ) async throws -> ServerAPIClient {
        try await ServerAPIClient(
            http: http,
            credentials: .init(
                issuerId: "issuer", keyId: "KEY1", privateKeyPEM: key.pemRepresentation, bundleId: "com.example.game",
                productionURL: "\(url)/production", sandboxURL: "\(url)/sandbox"),
            now: now)
    }

    private static func outcome(
        _ ask: () async throws(AppStoreFailure) -> ServerAPIClient.TransactionInfo
    ) async -> Result<ServerAPIClient.TransactionInfo, AppStoreFailure> {
        do throws(AppStoreFailure) { return .success(try await ask()) } catch { return .failure(error) }
    }

    @Test func `the question is a GET with a token Apple can read`() async throws {
        let now = Date(timeIntervalSince1970: 1_780_000_000.9)
        try await LocalApple.serving({ _ in Self.found }) { apple, http in
            let info = try await Self.client(http, apple.url, now: { now }).transactionInfo("123", in: .sandbox)
            #expect(info.signedTransaction == "a.b.c")
            #expect(info.environment == .sandbox)
            #expect(info.calls.map(\.httpStatus) == [200])
            #expect(info.calls.map(\.service) == [.serverApi])
            let asked = try #require(apple.requests.first)
            #expect(asked.method == "GET")
            #expect(asked.path == "/sandbox/inApps/v1/transactions/123")

            let bearer = try #require(asked.headers["authorization"])
            #expect(bearer.hasPrefix("Bearer "))
            let parts = bearer.dropFirst(7).split(separator: ".").map { Array($0.utf8) }
            let decoded = parts.compactMap { Base64.decodeURL($0[...]) }
            try #require(decoded.count == 3)
            let header = try JSON(parsing: decoded[0])
            #expect(header == .object(["alg": .string("ES256"), "kid": .string("KEY1"), "typ": .string("JWT")]))
            let claims = try #require(try JSON(parsing: decoded[1]).object)
            #expect(claims["iss"] == .string("issuer"))
            #expect(claims["aud"] == .string("appstoreconnect-v1"))
            #expect(claims["bid"] == .string("com.example.game"))
            let issued = try #require(try claims.int("iat"))
            let expires = try #require(try claims.int("exp"))
            #expect(issued <= 1_780_000_000)
            #expect(expires > 1_780_000_000 + 20 * 60)
            #expect(expires - issued <= 60 * 60)
            let signature = try P256.Signing.ECDSASignature(rawRepresentation: decoded[2])
            let signed = bearer.dropFirst(7).prefix(parts[0].count + 1 + parts[1].count)
            #expect(Self.key.publicKey.isValidSignature(signature, for: Data(signed.utf8)))
        }
    }

    @Test func `one token serves many calls, until its time is over, the clock is set back or Apple refuses it`()
        async throws
    {
        let now = Mutex(Date(timeIntervalSince1970: 1_780_000_000))
        let refuses = Mutex(false)
        try await LocalApple.serving({ _ in refuses.withLock { $0 } ? Self.unauthorized : Self.found }) { apple, http in
            let client = try await Self.client(http, apple.url, now: { now.withLock { $0 } })
            func call() async throws -> String {
                _ = await Self.outcome { () throws(AppStoreFailure) in
                    try await client.transactionInfo("1", in: .production)
                }
                return try #require(apple.requests.last?.headers["authorization"])
            }
            let first = try await call()
            now.withLock { $0 += BearerToken.useTime - 1 }
            #expect(try await call() == first)
            now.withLock { $0 += 2 }
            let second = try await call()
            #expect(second != first)
            now.withLock { $0 -= 60 }
            let third = try await call()
            #expect(third != second)

            refuses.withLock { $0 = true }
            #expect(try await call() == third)
            #expect(try await call() != third)
        }
    }

    @Test func `many calls at once are answered`() async throws {
        try await LocalApple.serving({ _ in Self.found }) { apple, http in
            let client = try await Self.client(http, apple.url)
            try await withThrowingTaskGroup(of: Void.self) { group in
                for number in 0..<40 {
                    group.addTask { _ = try await client.transactionInfo("\(number)", in: .production) }
                }
                try await group.waitForAll()
            }
            #expect(apple.requests.count == 40)
        }
    }

    @Test func `an id cannot leave its place in the path`() async throws {
        try await LocalApple.serving({ _ in Self.found }) { apple, http in
            let client = try await Self.client(http, apple.url)
            for (id, path) in [
                ("a/../b?c#d", "a%2F%2E%2E%2Fb%3Fc%23d"), ("..", "%2E%2E"), ("1 2%", "1%202%25"), ("é", "%C3%A9"),
                ("A-z_9", "A-z_9"),
            ] {
                #expect(ServerAPIClient.percentEncoded(id) == path)
                _ = try await client.transactionInfo(id, in: .production)
                #expect(apple.requests.last?.path == "/production/inApps/v1/transactions/\(path)")
            }
            let asked = apple.requests.count
            let empty = await Self.outcome { () throws(AppStoreFailure) in
                try await client.transactionInfo("", in: .production)
            }
            #expect(empty == .failure(AppStoreFailure(.api(code: .invalidTransactionId, httpStatus: 400))))
            #expect(apple.requests.count == asked)
        }
    }

    @Test func `P15: each answer becomes one case`() async throws {
        for (answer, expected, retryable) in [
            (Self.unauthorized, .unauthorized, false),
            (Self.error(4_010_000), .unauthorized, false),
            (Self.error(4_000_006), .api(code: .invalidTransactionId, httpStatus: 400), false),
            (Self.error(4_000_048), .api(code: .appTransactionIdNotSupported, httpStatus: 400), false),
            (Self.error(4_040_002), .api(code: .accountNotFoundRetryable, httpStatus: 404), true),
            (Self.error(4_040_010), .api(code: .transactionIdNotFound, httpStatus: 404), true),
            (Self.error(4_290_000), .rateLimited(until: nil), true),
            (Self.error(5_000_000), .api(code: .generalInternal, httpStatus: 500), true),
            (Self.error(5_000_001), .api(code: .generalInternalRetryable, httpStatus: 500), true),
            (Self.error(4_009_999), .api(code: APIErrorCode(rawValue: 4_009_999), httpStatus: 400), true),
            (.json("<html>", status: 502), .httpStatus(502), true),
            (.json(#"{"errorCode":"x"}"#, status: 400), .httpStatus(400), true),
            (.json("{}"), .garbage, true), (.json(#"{"signedTransactionInfo":7}"#), .garbage, true),
            (.json(""), .garbage, true),
        ] as [(LocalApple.Answer, AppStoreError, Bool)] {
            try await LocalApple.serving({ _ in answer }) { apple, http in
                let client = try await Self.client(http, apple.url)
                guard
                    case .failure(let failure) = await Self.outcome({ () throws(AppStoreFailure) in
                        try await client.transactionInfo("1", in: .production)
                    })
                else {
                    Issue.record("\(expected) was believed")
                    return
                }
                #expect(failure.error == expected)
                #expect(failure.isRetryable == retryable, "\(expected)")
                #expect(failure.calls.count == 1)
                #expect(!failure.description.contains("secret"))
            }
        }
    }

    @Test func `P12, P13, P14: where the environment is unknown`() async throws {
        let missing = AppStoreError.api(code: .transactionIdNotFound, httpStatus: 404)
        let both: [StoreEnvironment] = [.sandbox, .production]
        for (environments, production, sandbox, expected, calls) in [
            (both, Self.found, Self.found, .success(.production), 1),
            (both, Self.error(4_040_010), Self.found, .success(.sandbox), 2),
            (both, Self.error(4_040_005), Self.found, .success(.sandbox), 2),
            (both, Self.unauthorized, Self.found, .success(.sandbox), 2),
            (both, Self.unauthorized, Self.unauthorized, .failure(.unauthorized), 2),
            (both, Self.unauthorized, Self.error(4_040_010), .failure(missing), 2),
            (both, Self.error(4_040_010), Self.error(4_040_010), .failure(missing), 2),
            (both, Self.error(4_040_010), .json("x", status: 503), .failure(.httpStatus(503)), 2),
            (both, .json("x", status: 500), Self.found, .failure(.httpStatus(500)), 1),
            (both, Self.error(4_290_000), Self.found, .failure(.rateLimited(until: nil)), 1),
            ([.production], Self.error(4_040_010), Self.found, .failure(missing), 1),
            ([.sandbox], Self.found, Self.found, .success(.sandbox), 1),
            ([.xcode], Self.found, Self.found, .failure(.environmentNotServed), 0),
            ([], Self.found, Self.found, .failure(.environmentNotServed), 0),
        ]
            as [(
                [StoreEnvironment], LocalApple.Answer, LocalApple.Answer, Result<StoreEnvironment, AppStoreError>, Int
            )]
        {
            try await LocalApple.serving({ $0.path.hasPrefix("/production") ? production : sandbox }) { apple, http in
                let client = try await Self.client(http, apple.url)
                let outcome = await Self.outcome { () throws(AppStoreFailure) in
                    try await client.transactionInfo("1", trying: environments)
                }
                #expect(outcome.map(\.environment).mapError(\.error) == expected)
                #expect(apple.requests.count == calls)
                switch outcome {
                case .success(let info): #expect(info.calls.count == calls)
                case .failure(let failure): #expect(failure.calls.count == calls)
                }
            }
        }
    }

    @Test(arguments: ["", "not a key", P384.Signing.PrivateKey().pemRepresentation])
    func `a key that cannot sign stops at the start`(_ pem: String) async throws {
        try await LocalApple.serving({ _ in Self.found }) { _, http in
            _ = await #expect(throws: AppStoreError.credentialsMissing) {
                try await ServerAPIClient(
                    http: http, credentials: .init(issuerId: "i", keyId: "k", privateKeyPEM: pem, bundleId: "b"))
            }
        }
    }
}

@Suite struct APIErrorCodeTests {
    /// Every code Apple could have meant: the statuses it uses, and some 300 numbers in each.
    private static let codes = [400, 401, 403, 404, 409, 429, 500, 503].flatMap { status in
        (Int64(0)..<300).map { APIErrorCode(rawValue: Int64(status) * 10_000 + $0) }
    }

    @Test func `P15: exactly the documented group and 5000000 are retryable`() {
        #expect(
            Self.codes.filter(\.isRetryable).map(\.rawValue) == [
                4_040_002, 4_040_004, 4_040_006, 4_290_000, 5_000_000, 5_000_001,
            ])
    }

    @Test func `P14: not found is two codes, and no verdict`() {
        let notFound = Self.codes.filter(\.isTransactionNotFound)
        #expect(notFound.map(\.rawValue) == [4_040_005, 4_040_010])
        #expect(notFound.allSatisfy { AppStoreError.api(code: $0, httpStatus: 404).isRetryable })
    }

    @Test func `P15: the 67 codes of apple-facts 3.7 are known, any other is asked again`() {
        let known = Self.codes.filter(\.isKnown)
        #expect(known.count == 67)
        #expect(
            Self.codes.filter { !$0.isKnown }.allSatisfy { AppStoreError.api(code: $0, httpStatus: 400).isRetryable })
    }
}
