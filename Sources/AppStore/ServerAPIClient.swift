package import AsyncHTTPClient
package import Foundation
import NIOHTTP1

/// Asks the App Store Server API, as one app.
///
/// Source: apple-facts 3.1 to 3.3. The HTTP client should not follow redirects: a token is not for other hosts.
package struct ServerAPIClient: Sendable {
    package struct Credentials: Sendable {
        package var issuerId: String
        package var keyId: String
        /// PKCS#8 PEM of the In-App Purchase key (`.p8`), P-256.
        package var privateKeyPEM: String
        package var bundleId: String
        package var productionURL: String
        package var sandboxURL: String

        package init(
            issuerId: String, keyId: String, privateKeyPEM: String, bundleId: String,
            productionURL: String = "https://api.storekit.apple.com",
            sandboxURL: String = "https://api.storekit-sandbox.apple.com"
        ) {
            self.issuerId = issuerId
            self.keyId = keyId
            self.privateKeyPEM = privateKeyPEM
            self.bundleId = bundleId
            self.productionURL = productionURL
            self.sandboxURL = sandboxURL
        }
    }

    /// Apple's answer about one transaction; the JWS is still to be verified.
    package struct TransactionInfo: Sendable, Hashable {
        package let signedTransaction: String
        /// Where it was found.
        package let environment: StoreEnvironment
        /// The calls that led here, in order; the last one succeeded.
        package let calls: [ServiceCall]
    }

    private let http: AppStoreHTTP
    private let productionURL: String
    private let sandboxURL: String
    private let token: BearerToken

    /// - Throws: ``AppStoreError/credentialsMissing`` if the key cannot be read.
    package init(
        http: HTTPClient, credentials: Credentials, timeout: Duration = .seconds(20),
        now: @escaping @Sendable () -> Date = { Date() }
    ) async throws(AppStoreError) {
        self.http = AppStoreHTTP(http: http, timeout: timeout, now: now)
        self.productionURL = credentials.productionURL
        self.sandboxURL = credentials.sandboxURL
        self.token = try await BearerToken(credentials, now: now)
    }

    /// Get Transaction Info in one environment (apple-facts 3.3, endpoint 1).
    ///
    /// - Throws: not found is `.api` with 4040010 or 4040005, and retryable: a new purchase may take a while to show.
    package func transactionInfo(
        _ transactionId: String, in environment: StoreEnvironment
    ) async throws(AppStoreFailure) -> TransactionInfo {
        let host: String
        switch environment {
        case .production: host = productionURL
        case .sandbox: host = sandboxURL
        default: throw AppStoreFailure(.environmentNotServed)
        }
        // Without an id the path is another endpoint's; Apple's answer to it would mean nothing.
        guard !transactionId.isEmpty else {
            throw AppStoreFailure(.api(code: .invalidTransactionId, httpStatus: 400))
        }
        let bearer: String
        do throws(AppStoreError) { bearer = try await token.current() } catch { throw AppStoreFailure(error) }

        var request = HTTPClientRequest(
            url: "\(host)/inApps/v1/transactions/\(Self.percentEncoded(transactionId))")
        request.headers = ["Authorization": "Bearer \(bearer)", "Accept": "application/json"]
        let (result, call) = await http.call(.serverApi, in: environment, request, reading: Self.signedTransaction)
        switch result {
        case .success(let jws):
            return TransactionInfo(signedTransaction: jws, environment: environment, calls: [call])
        case .failure(let error):
            // A token refused once is not offered again: after the clock or the key is mended the next one is new.
            if error == .unauthorized { await token.discard(bearer) }
            throw AppStoreFailure(error, calls: [call])
        }
    }

    /// Get Transaction Info where the environment is not known: production first, the sandbox if it is not there.
    ///
    /// 401 of production also leads to the sandbox: an app never released answers so (requirements P13). Both refusing
    /// means the credentials are wrong; if only production refuses, the sandbox's answer stands, as the key is good.
    /// - Throws: any other error of production at once; it says nothing about the sandbox.
    package func transactionInfo(
        _ transactionId: String, trying environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> TransactionInfo {
        let candidates = [StoreEnvironment.production, .sandbox].filter { environments.contains($0) }
        guard let first = candidates.first else { throw AppStoreFailure(.environmentNotServed) }
        let failure: AppStoreFailure
        do throws(AppStoreFailure) {
            return try await transactionInfo(transactionId, in: first)
        } catch {
            failure = error
        }
        guard candidates.count > 1, Self.leadsToSandbox(failure.error) else { throw failure }
        do throws(AppStoreFailure) {
            let info = try await transactionInfo(transactionId, in: .sandbox)
            return TransactionInfo(
                signedTransaction: info.signedTransaction, environment: info.environment,
                calls: failure.calls + info.calls)
        } catch {
            throw AppStoreFailure(error.error, calls: failure.calls + error.calls)
        }
    }

    private static func leadsToSandbox(_ error: AppStoreError) -> Bool {
        switch error {
        case .unauthorized: true
        case .api(let code, _): code.isTransactionNotFound
        default: false
        }
    }

    private static func signedTransaction(_ answer: AppStoreHTTP.Answer) -> AppStoreHTTP.Reading<String> {
        let body = try? JSON(parsing: answer.body).object
        if (200..<300).contains(answer.status) {
            guard let jws = body?["signedTransactionInfo"]?.string else {
                return .init(code: nil, result: .failure(.garbage))
            }
            return .init(code: nil, result: .success(jws))
        }
        let code = body.flatMap { try? $0.int64("errorCode") }
        let error: AppStoreError
        switch (answer.status, code) {
        case (401, _): error = .unauthorized
        case (_, let code?): error = .api(code: APIErrorCode(rawValue: code), httpStatus: answer.status)
        case (_, nil): error = .httpStatus(answer.status)
        }
        return .init(code: code, result: .failure(error))
    }

    /// Ids come from clients: all but letters, digits, `-` and `_` is encoded, dots too, so that no id is a path.
    static func percentEncoded(_ id: String) -> String {
        let digits = Array("0123456789ABCDEF".utf8)
        var encoded: [UInt8] = []
        for byte in id.utf8 {
            switch byte {
            case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
                encoded.append(byte)
            default:
                encoded += [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 0xF)]]
            }
        }
        return String(decoding: encoded, as: UTF8.self)
    }
}
