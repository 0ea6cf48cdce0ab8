import Testing

@testable import AppStore

// Goal: each of Apple's codes has its name and exactly one meaning, and no other number has one (requirements P14,
// P15). Method: AppleFacts 3.7 written down a second time, and every number that Apple could have meant.

@Suite struct APIErrorCodeTests {
    /// The names, as AppleFacts 3.7 lists them.
    private static let documented: [Int64: String] = [
        4_000_000: "GeneralBadRequest", 4_000_031: "InvalidStatus",
        4_000_002: "InvalidAppIdentifier", 4_000_032: "InvalidAccountTenure",
        4_000_004: "InvalidLimit", 4_000_033: "InvalidAppAccountToken",
        4_000_005: "InvalidRequestRevision", 4_000_034: "InvalidConsumptionStatus",
        4_000_006: "InvalidTransactionId", 4_000_035: "InvalidCustomerConsented",
        4_000_008: "InvalidOriginalTransactionId", 4_000_036: "InvalidDeliveryStatus",
        4_000_009: "InvalidExtendByDays", 4_000_037: "InvalidLifetimeDollarsPurchased",
        4_000_010: "InvalidExtendReasonCode", 4_000_038: "InvalidLifetimeDollarsRefunded",
        4_000_011: "InvalidRequestIdentifier", 4_000_039: "InvalidPlatform",
        4_000_012: "StartDateTooFarInPast", 4_000_040: "InvalidPlayTime",
        4_000_013: "StartDateAfterEndDate", 4_000_041: "InvalidSampleContentProvided",
        4_000_014: "InvalidPaginationToken", 4_000_042: "InvalidUserStatus",
        4_000_015: "InvalidStartDate", 4_000_043: "InvalidTransactionNotConsumable",
        4_000_016: "InvalidEndDate", 4_000_044: "InvalidRefundPreference",
        4_000_017: "PaginationTokenExpired", 4_000_047: "InvalidTransactionTypeNotSupported",
        4_000_018: "InvalidNotificationType", 4_000_048: "AppTransactionIdNotSupported",
        4_000_019: "MultipleFiltersSupplied", 4_000_183: "InvalidAppAccountTokenUUID",
        4_000_020: "InvalidTestNotificationToken", 4_000_185: "FamilyTransactionNotSupported",
        4_000_021: "InvalidSort", 4_000_187: "TransactionIdIsNotOriginalTransactionId",
        4_000_022: "InvalidProductType", 4_000_209: "ConsumptionPercentageAutoRenewableSubscription",
        4_000_023: "InvalidProductId", 4_000_225: "InvalidGroupId",
        4_000_024: "InvalidSubscriptionGroupIdentifier", 4_000_227: "InvalidAssignedTransactionNotSupported",
        4_000_025: "InvalidExcludeRevoked", 4_030_004: "SubscriptionExtensionIneligible",
        4_000_026: "InvalidInAppOwnershipType", 4_030_005: "SubscriptionMaxExtension",
        4_000_027: "InvalidEmptyStorefrontCountryCodeList", 4_030_007: "FamilySharedSubscriptionExtensionIneligible",
        4_000_028: "InvalidStorefrontCountryCode", 4_040_001: "AccountNotFound",
        4_000_030: "InvalidRevoked", 4_040_002: "AccountNotFoundRetryable",
        4_040_003: "AppNotFound", 4_040_004: "AppNotFoundRetryable",
        4_040_005: "OriginalTransactionIdNotFound", 4_040_006: "OriginalTransactionIdNotFoundRetryable",
        4_040_007: "ServerNotificationUrlNotFound", 4_040_008: "TestNotificationNotFound",
        4_040_009: "StatusRequestNotFound", 4_040_010: "TransactionIdNotFound",
        4_040_019: "AppTransactionDoesNotExist", 4_040_022: "GroupNotFound",
        4_290_000: "RateLimitExceeded", 5_000_000: "GeneralInternal",
        5_000_001: "GeneralInternalRetryable",
        // Retention messaging.
        4_000_161: "InvalidImage", 4_000_162: "HeaderTooLong", 4_000_163: "BodyTooLong", 4_000_164: "InvalidLocale",
        4_000_175: "AltTextTooLong", 4_000_211: "InvalidPerformanceTestRequest", 4_000_212: "InvalidRequestId",
        4_000_213: "ExistingPerformanceTestRun", 4_000_215: "BadRequestRealtimeUrl",
        4_000_216: "BadRequestImageSize", 4_000_218: "BadRequestTooManyBulletPoints",
        4_000_219: "BadRequestBulletPointTextTooLong", 4_000_224: "BadRequestAboveImageRequiresAnImage",
        4_030_014: "MaximumNumberOfImagesReached", 4_030_016: "MaximumNumberOfMessagesReached",
        4_030_017: "MessageNotApproved", 4_030_018: "ImageNotApproved", 4_030_019: "ImageInUse",
        4_030_026: "ForbiddenNoPassingTest", 4_040_014: "ImageNotFound", 4_040_015: "MessageNotFound",
        4_040_018: "PerformanceTestRunNotFound", 4_040_020: "DefaultMessageNotFound",
        4_040_021: "RealtimeUrlNotFound", 4_090_000: "ImageAlreadyExists", 4_090_001: "MessageAlreadyExists",
    ]

    /// The codes by meaning; every other code is a fault of our request.
    private static let meanings: [APIErrorCode.Meaning: Set<Int64>] = [
        .temporary: [4_040_002, 4_040_004, 4_040_006, 5_000_000, 5_000_001],
        .tooMany: [4_290_000],
        .notFound: [4_040_005, 4_040_010],
        .invalidID: [4_000_006, 4_000_048],
        .configuration: [4_000_002, 4_040_003, 4_040_007],
        .refused: [
            4_000_043, 4_000_047, 4_000_185, 4_000_213, 4_000_227, 4_030_004, 4_030_005, 4_030_007, 4_030_014,
            4_030_016, 4_030_017, 4_030_018, 4_030_019, 4_030_026, 4_090_000, 4_090_001,
        ],
        .absent: [
            4_040_001, 4_040_008, 4_040_009, 4_040_014, 4_040_015, 4_040_018, 4_040_019, 4_040_020, 4_040_021,
            4_040_022,
        ],
    ]

    private static let possible: [Int64] =
        (400...599).flatMap { status in (0..<400).map { status * 10_000 + $0 } } + [0, -1, 1, .max, .min]

    @Test func `AppleFacts 3.7: every code has its name and its meaning, and no other has one`() {
        #expect(Self.documented.count == 93)
        for number in Self.possible {
            let code = APIErrorCode(rawValue: number)
            let name = Self.documented[number]
            let meaning = Self.meanings.first { $0.value.contains(number) }?.key
            #expect(code.name == name, "\(number)")
            #expect(code.meaning == (name == nil ? .unknown : meaning ?? .ourRequest), "\(number)")
            #expect(code.description == name.map { "\(number) \($0)" } ?? "\(number)")
        }
        #expect(Set(Self.documented.keys).isSubset(of: Self.possible))
    }

    @Test func `P14, P15: exactly the documented group, 5000000, not found and what we do not know is asked again`() {
        let retryable: Set<Int64> = [
            4_040_002, 4_040_004, 4_040_005, 4_040_006, 4_040_010, 4_290_000, 5_000_000, 5_000_001,
        ]
        for number in Self.possible {
            let error = AppStoreError.api(code: APIErrorCode(rawValue: number), httpStatus: 400)
            #expect(
                error.isRetryable == (retryable.contains(number) || Self.documented[number] == nil), "\(number)")
            #expect(error.label == (Self.documented[number] == nil ? "api_unknown" : "api"), "\(number)")
        }
    }

    @Test func `the named codes are the ones meant`() {
        for (code, name) in [
            (APIErrorCode.generalBadRequest, "GeneralBadRequest"), (.invalidTransactionId, "InvalidTransactionId"),
            (.invalidOriginalTransactionId, "InvalidOriginalTransactionId"),
            (.invalidRequestIdentifier, "InvalidRequestIdentifier"),
            (.invalidTestNotificationToken, "InvalidTestNotificationToken"),
            (.transactionIdNotFound, "TransactionIdNotFound"), (.generalInternal, "GeneralInternal"),
            (.generalInternalRetryable, "GeneralInternalRetryable"),
        ] {
            #expect(code.name == name)
        }
    }
}
