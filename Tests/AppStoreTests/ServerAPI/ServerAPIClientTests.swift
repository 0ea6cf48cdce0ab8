import AsyncHTTPClient
import Crypto
import Foundation
import Synchronization
import Testing

@testable import AppStore
@testable import Encoding

// Goal: one question to the App Store Server API ends in a JWS, or in the one case that says what to do (requirements
// P13 to P15). Method: a real HTTP server for both environments; the test reads the token with the public half of the
// key.

@Suite struct ServerAPIClientTests {
    private static let found = LocalApple.Answer.json(#"{"signedTransactionInfo":"a.b.c","new":1}"#)

    @Test func `the token is one that Apple can read`() async throws {
        let now = Date(timeIntervalSince1970: 1_780_000_000.9)
        try await LocalApple.serving({ _ in Self.found }) { apple, http in
            let info = try await ServerAPILab.client(http, apple.url, now: { now }).transactionInfo(
                "123", in: [.sandbox])
            #expect(info.value == "a.b.c")
            #expect(info.environment == .sandbox)
            #expect(info.calls.map(\.httpStatus) == [200])
            #expect(info.calls.map(\.service) == [.serverApi])
            let asked = try #require(apple.requests.first)
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
            let issued = try #require(AppleFields(claims).int("iat"))
            let expires = try #require(AppleFields(claims).int("exp"))
            // The token must be valid for Apple's clock, up to 5 minutes behind ours, and up to 15 ahead at the end of
            // its use.
            #expect(issued == 1_780_000_000 - 5 * 60)
            #expect(expires == 1_780_000_000 + (20 + 15) * 60)
            #expect(expires - issued <= 60 * 60)
            let signature = try P256.Signing.ECDSASignature(rawRepresentation: decoded[2])
            let signed = bearer.dropFirst(7).prefix(parts[0].count + 1 + parts[1].count)
            #expect(ServerAPILab.key.publicKey.isValidSignature(signature, for: Data(signed.utf8)))
        }
    }

    @Test func `one token serves many calls, until its time is over, the clock is set back or Apple refuses it`()
        async throws
    {
        let now = Mutex(Date(timeIntervalSince1970: 1_780_000_000))
        let refuses = Mutex(false)
        try await LocalApple.serving({ _ in refuses.withLock { $0 } ? ServerAPILab.unauthorized : Self.found }) {
            apple, http in
            let client = try await ServerAPILab.client(http, apple.url, now: { now.withLock { $0 } })
            func call() async throws -> String {
                _ = await ServerAPILab.outcome { () throws(AppStoreFailure) in
                    try await client.transactionInfo("1", in: [.production])
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

    @Test func `P13: a token that production refuses and the sandbox takes is a good one`() async throws {
        try await LocalApple.serving(
            { $0.path.hasPrefix("/production") ? ServerAPILab.unauthorized : Self.found }
        ) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            for _ in 1...3 { _ = try await client.transactionInfo("1", in: ServerAPILab.both) }
            #expect(apple.requests.count == 6)
            #expect(Set(apple.requests.map { $0.headers["authorization"] }).count == 1)
        }
    }

    @Test func `many calls at once are answered, with one token`() async throws {
        try await LocalApple.serving({ _ in Self.found }) { apple, http in
            let client = try await ServerAPILab.client(http, apple.url)
            try await withThrowingTaskGroup(of: Void.self) { group in
                for number in 0..<40 {
                    group.addTask { _ = try await client.transactionInfo("\(number)", in: [.production]) }
                }
                try await group.waitForAll()
            }
            #expect(apple.requests.count == 40)
            #expect(Set(apple.requests.map { $0.headers["authorization"] }).count == 1)
        }
    }

    @Test func `P15: each answer becomes one case`() async throws {
        func code(_ code: Int64, _ status: Int) -> AppStoreError {
            .api(code: APIErrorCode(rawValue: code), httpStatus: status)
        }
        for (answer, expected, retryable) in [
            (ServerAPILab.unauthorized, .unauthorized, false),
            (ServerAPILab.error(4_010_000), .unauthorized, false),
            (ServerAPILab.error(4_000_006), code(4_000_006, 400), false),
            (ServerAPILab.error(4_000_048), code(4_000_048, 400), false),
            (ServerAPILab.error(4_040_001), code(4_040_001, 404), false),
            (ServerAPILab.error(4_040_002), code(4_040_002, 404), true),
            (ServerAPILab.error(4_040_010), code(4_040_010, 404), true),
            (ServerAPILab.error(4_290_000), .rateLimited(until: nil), true),
            (ServerAPILab.error(5_000_000), code(5_000_000, 500), true),
            (ServerAPILab.error(5_000_001), code(5_000_001, 500), true),
            (ServerAPILab.error(4_009_999), code(4_009_999, 400), true),
            (.json("<html>", status: 502), .httpStatus(502), true),
            (.json(#"{"errorCode":"x"}"#, status: 400), .httpStatus(400), true),
            (.json(#"{"errorCode":1.5}"#, status: 404), .httpStatus(404), true),
            (.json(#"[4040010]"#, status: 404), .httpStatus(404), true),
            (.json(#"{"signedTransactionInfo":"a.b.c"}"#, status: 302), .httpStatus(302), true),
            (.json("{}"), .garbage, true), (.json(#"{"signedTransactionInfo":{}}"#), .garbage, true),
            (.json(""), .garbage, true), (.json(#"["a.b.c"]"#), .garbage, true),
        ] as [(LocalApple.Answer, AppStoreError, Bool)] {
            try await LocalApple.serving({ _ in answer }) { apple, http in
                let client = try await ServerAPILab.client(http, apple.url)
                guard
                    case .failure(let failure) = await ServerAPILab.outcome({ () throws(AppStoreFailure) in
                        try await client.transactionInfo("1", in: [.production])
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
            (both, ServerAPILab.error(4_040_010), Self.found, .success(.sandbox), 2),
            (both, ServerAPILab.error(4_040_005), Self.found, .success(.sandbox), 2),
            (both, ServerAPILab.unauthorized, Self.found, .success(.sandbox), 2),
            (both, ServerAPILab.unauthorized, ServerAPILab.unauthorized, .failure(.unauthorized), 2),
            (both, ServerAPILab.unauthorized, ServerAPILab.error(4_040_010), .failure(missing), 2),
            (both, ServerAPILab.error(4_040_010), ServerAPILab.error(4_040_010), .failure(missing), 2),
            (both, ServerAPILab.error(4_040_010), .json("x", status: 503), .failure(.httpStatus(503)), 2),
            (both, .json("x", status: 500), Self.found, .failure(.httpStatus(500)), 1),
            (both, ServerAPILab.error(4_290_000), Self.found, .failure(.rateLimited(until: nil)), 1),
            ([.production], ServerAPILab.error(4_040_010), Self.found, .failure(missing), 1),
            ([.sandbox], Self.found, Self.found, .success(.sandbox), 1),
            ([.xcode], Self.found, Self.found, .failure(.environmentNotServed), 0),
            ([], Self.found, Self.found, .failure(.environmentNotServed), 0),
        ]
            as [(
                [StoreEnvironment], LocalApple.Answer, LocalApple.Answer, Result<StoreEnvironment, AppStoreError>, Int
            )]
        {
            try await LocalApple.serving({ $0.path.hasPrefix("/production") ? production : sandbox }) { apple, http in
                let client = try await ServerAPILab.client(http, apple.url)
                let outcome = await ServerAPILab.outcome { () throws(AppStoreFailure) in
                    try await client.transactionInfo("1", in: environments)
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
