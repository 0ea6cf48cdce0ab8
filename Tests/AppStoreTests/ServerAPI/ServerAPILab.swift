import AsyncHTTPClient
import Crypto
import Foundation

@testable import AppStore

/// A client of one app whose two hosts are folders of one local server, and texts of Apple's answers.
enum ServerAPILab {
    static let key = P256.Signing.PrivateKey()
    static let both: [StoreEnvironment] = [.sandbox, .production]
    static let unauthorized = LocalApple.Answer.json("Unauthenticated", status: 401)

    static func error(_ code: Int64) -> LocalApple.Answer {
        .json(#"{"errorCode":\#(code),"errorMessage":"secret text"}"#, status: Int(code / 10_000))
    }

    static func client(
        _ http: HTTPClient, _ url: String, now: @escaping @Sendable () -> Date = { Date() }
    ) async throws -> ServerAPIClient {
        try await ServerAPIClient(
            http: http,
            credentials: .init(
                issuerId: "issuer", keyId: "KEY1", privateKeyPEM: key.pemRepresentation, bundleId: "com.example.game",
                productionURL: "\(url)/production", sandboxURL: "\(url)/sandbox"),
            now: now)
    }

    static func outcome<Value>(
        _ ask: () async throws(AppStoreFailure) -> Value
    ) async -> Result<Value, AppStoreFailure> {
        do throws(AppStoreFailure) { return .success(try await ask()) } catch { return .failure(error) }
    }
}
