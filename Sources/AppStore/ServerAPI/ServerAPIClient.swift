package import AsyncHTTPClient
import Encoding
package import Foundation
import NIOHTTP1

/// Asks the App Store Server API, as one app.
///
/// Each endpoint is a method, in a file with its parameters and results. A method that takes an id takes the
/// environments the id may belong to: if it is one, Apple is asked there; if it is production and sandbox, the rule of
/// AppleFacts 3.1 finds the right one. The signed data in an answer is still to be verified. Every method throws
/// ``AppStoreFailure`` with the calls made; its `isRetryable` says whether the same call may succeed later.
///
/// Source: AppleFacts 3.1 to 3.3. The HTTP client should not follow redirects: a token is not for other hosts.
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

    /// Apple's answer, its environment, and the calls that it took.
    package struct Answer<Value: Sendable>: Sendable {
        package let value: Value
        /// The environment that answered.
        package let environment: StoreEnvironment
        /// The calls that led here, in order; the last one succeeded.
        package let calls: [ServiceCall]
    }

    private var http: AppStoreHTTP
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

    /// The same client, whose calls this limiter lets through.
    package func through(_ limiter: any CallLimiter) -> ServerAPIClient {
        var client = self
        client.http.limiter = limiter
        return client
    }

    /// Asks Apple. If both environments are given, the rule of AppleFacts 3.1 holds: production is asked, and then the
    /// sandbox if production does not know the id. Every request goes out from here.
    ///
    /// A 401 of production also leads to the sandbox: an app never released gets that answer (requirements P13). If
    /// both refuse, the credentials are wrong; if only production refuses, the key is good, and the sandbox's answer
    /// stands.
    /// - Throws: any other error of production at once; it says nothing about the sandbox.
    ///   ``AppStoreError/environmentNotServed`` if Apple offers the endpoint in none of them.
    func ask<Value>(
        _ request: Request<Value>, in environments: [StoreEnvironment]
    ) async throws(AppStoreFailure) -> Answer<Value> {
        let bearer: String
        do throws(AppStoreError) { bearer = try await token.current() } catch { throw AppStoreFailure(error) }
        var candidates = [StoreEnvironment.production, .sandbox].filter {
            environments.contains($0) && request.endpoint.environments.contains($0)
        }[...]
        var calls: [ServiceCall] = []
        while let environment = candidates.popFirst() {
            let host = environment == .production ? productionURL : sandboxURL
            guard let question = request.http(to: host, token: bearer) else {
                throw AppStoreFailure(.api(code: request.endpoint.invalidID, httpStatus: 400))
            }
            let answer: CallAnswer<Value>
            do throws(AppStoreError) {
                answer = try await http.call(AppleHost(.serverApi, environment), request.endpoint, question) {
                    Self.reading($0, request.read)
                }
            } catch {
                throw AppStoreFailure(error, calls: calls)
            }
            calls.append(answer.call)
            switch answer.result {
            case .success(let value): return Answer(value: value, environment: environment, calls: calls)
            case .failure(let error):
                if !candidates.isEmpty, Self.leadsToSandbox(error) { continue }
                // A token refused once is not offered again: after the clock or the key is mended the next one is new.
                if error == .unauthorized { await token.discard(bearer) }
                throw AppStoreFailure(error, calls: calls)
            }
        }
        throw AppStoreFailure(.environmentNotServed)
    }

    private static func leadsToSandbox(_ error: AppStoreError) -> Bool {
        switch error {
        case .unauthorized: true
        case .api(let code, _): code.meaning == .notFound
        default: false
        }
    }

    private static func reading<Value>(
        _ answer: AppStoreHTTP.Answer, _ read: ([String: JSON]?) throws(FieldMismatch) -> Value
    ) -> AppStoreHTTP.Reading<Value> {
        let body = answer.object
        if (200..<300).contains(answer.status) {
            do {
                return .init(code: nil, result: .success(try read(body)))
            } catch {
                return .init(code: nil, result: .failure(.garbage))
            }
        }
        let code = body.flatMap { AppleFields($0).int64("errorCode") }
        let error: AppStoreError
        switch (answer.status, code) {
        case (401, _): error = .unauthorized
        case (_, let code?): error = .api(code: APIErrorCode(rawValue: code), httpStatus: answer.status)
        case (_, nil): error = .httpStatus(answer.status)
        }
        return .init(code: code, result: .failure(error))
    }
}
