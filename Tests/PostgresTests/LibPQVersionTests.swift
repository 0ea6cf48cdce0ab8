import Testing

@testable import Postgres

/// Goal: a libpq below 15 stops the start and is named. Method: version numbers as the manual writes them, on both
/// sides of the limit, and the library that is loaded here.
@Suite struct LibPQVersionTests {
    @Test(arguments: [(90_624, "9.6.24"), (100_000, "10.0"), (140_019, "14.19"), (149_999, "14.9999"), (0, "0.0.0")])
    func tooOld(_ number: Int, _ name: String) throws {
        let error = try #require(throws: OldLibPQ.self) { try LibPQVersion(number: number).check() }
        #expect(error.description.hasPrefix("libpq \(name) is too old"))
        #expect(error.description.contains("15.0"))
    }

    @Test(arguments: [(150_000, "15.0"), (150_020, "15.20"), (180_001, "18.1")])
    func newEnough(_ number: Int, _ name: String) throws {
        try LibPQVersion(number: number).check()
        #expect(LibPQVersion(number: number).description == name)
    }

    @Test func theLoadedOne() throws {
        try LibPQVersion.loaded.check()
        #expect(LibPQVersion.loaded.number < 1_000_000)
    }
}
