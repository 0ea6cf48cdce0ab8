import Purchases
import Testing

/// Goal: the bound on the error rate is the one of statistics (L5). Method: a table of the upper limits of Poisson's law
/// at 95 % (Garwood, 1936), and properties.
@Suite struct AuditBoundTests {
    @Test(
        "the bound times the customers is Garwood's limit",
        arguments: [
            (0, 2.9957), (1, 4.7439), (2, 6.2958), (3, 7.7537), (4, 9.1535), (5, 10.5130), (10, 16.9622), (50, 63.287),
        ])
    func table(differences: Int, limit: Double) throws {
        for compared in [1, 100, 36_500] {
            let rate = try #require(AuditBound.rate(differences: differences, compared: compared))
            #expect(abs(rate * Double(compared) - limit) < 0.001)
        }
    }

    @Test("nobody compared proves nothing; more customers prove more, and more differences less")
    func properties() throws {
        #expect(AuditBound.rate(differences: 0, compared: 0) == nil)
        for differences in [0, 1, 7, 100, 5000] {
            let rates = try [10, 100, 1000].map {
                try #require(AuditBound.rate(differences: differences, compared: $0))
            }
            #expect(rates == rates.sorted(by: >) && rates.allSatisfy { $0.isFinite && $0 > 0 })
            let more = try #require(AuditBound.rate(differences: differences + 1, compared: 100))
            #expect(more > rates[1])
            #expect(rates[1] > Double(differences) / 100)
        }
    }
}
