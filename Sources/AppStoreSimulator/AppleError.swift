/// An error object of the App Store Server API (AppleFacts 3.7), with which an endpoint refuses a call.
///
/// A struct with names, not a closed enum: the list is Apple's and grows. The names are Apple's without the suffix
/// `Error`; the messages are ours, and no program should read them.
struct AppleError: Error, Equatable {
    /// Nil: Apple names the error, but no source gives its number. The simulator answers it as a 400 without
    /// `errorCode`.
    let code: Int?
    let name: String

    private init(_ code: Int?, _ name: String) {
        self.code = code
        self.name = name
    }

    /// The first three digits of the code.
    var status: Int { code.map { $0 / 10_000 } ?? 400 }

    /// The name as a sentence: `InvalidTransactionId` becomes "Invalid transaction id."
    var message: String {
        var words = ""
        for character in name {
            if character.isUppercase, !words.isEmpty { words.append(" ") }
            words.append(words.isEmpty ? String(character) : character.lowercased())
        }
        return words + "."
    }

    static let generalBadRequest = AppleError(4_000_000, "GeneralBadRequest")
    static let invalidAppIdentifier = AppleError(4_000_002, "InvalidAppIdentifier")
    static let invalidRequestRevision = AppleError(4_000_005, "InvalidRequestRevision")
    static let invalidTransactionId = AppleError(4_000_006, "InvalidTransactionId")
    static let invalidOriginalTransactionId = AppleError(4_000_008, "InvalidOriginalTransactionId")
    static let invalidExtendByDays = AppleError(4_000_009, "InvalidExtendByDays")
    static let invalidExtendReasonCode = AppleError(4_000_010, "InvalidExtendReasonCode")
    static let invalidRequestIdentifier = AppleError(4_000_011, "InvalidRequestIdentifier")
    static let startDateTooFarInPast = AppleError(4_000_012, "StartDateTooFarInPast")
    static let startDateAfterEndDate = AppleError(4_000_013, "StartDateAfterEndDate")
    static let invalidPaginationToken = AppleError(4_000_014, "InvalidPaginationToken")
    static let invalidStartDate = AppleError(4_000_015, "InvalidStartDate")
    static let invalidEndDate = AppleError(4_000_016, "InvalidEndDate")
    static let paginationTokenExpired = AppleError(4_000_017, "PaginationTokenExpired")
    static let invalidNotificationType = AppleError(4_000_018, "InvalidNotificationType")
    static let multipleFiltersSupplied = AppleError(4_000_019, "MultipleFiltersSupplied")
    static let invalidTestNotificationToken = AppleError(4_000_020, "InvalidTestNotificationToken")
    static let invalidSort = AppleError(4_000_021, "InvalidSort")
    static let invalidProductType = AppleError(4_000_022, "InvalidProductType")
    static let invalidProductId = AppleError(4_000_023, "InvalidProductId")
    static let invalidSubscriptionGroup = AppleError(4_000_024, "InvalidSubscriptionGroupIdentifier")
    static let invalidExcludeRevoked = AppleError(4_000_025, "InvalidExcludeRevoked")
    static let invalidInAppOwnershipType = AppleError(4_000_026, "InvalidInAppOwnershipType")
    static let emptyStorefrontList = AppleError(4_000_027, "InvalidEmptyStorefrontCountryCodeList")
    static let invalidStorefront = AppleError(4_000_028, "InvalidStorefrontCountryCode")
    static let invalidRevoked = AppleError(4_000_030, "InvalidRevoked")
    static let invalidStatus = AppleError(4_000_031, "InvalidStatus")
    static let invalidAccountTenure = AppleError(4_000_032, "InvalidAccountTenure")
    static let invalidAppAccountToken = AppleError(4_000_033, "InvalidAppAccountToken")
    static let invalidConsumptionStatus = AppleError(4_000_034, "InvalidConsumptionStatus")
    static let invalidCustomerConsented = AppleError(4_000_035, "InvalidCustomerConsented")
    static let invalidDeliveryStatus = AppleError(4_000_036, "InvalidDeliveryStatus")
    static let invalidDollarsPurchased = AppleError(4_000_037, "InvalidLifetimeDollarsPurchased")
    static let invalidDollarsRefunded = AppleError(4_000_038, "InvalidLifetimeDollarsRefunded")
    static let invalidPlatform = AppleError(4_000_039, "InvalidPlatform")
    static let invalidPlayTime = AppleError(4_000_040, "InvalidPlayTime")
    static let invalidSampleContentProvided = AppleError(4_000_041, "InvalidSampleContentProvided")
    static let invalidUserStatus = AppleError(4_000_042, "InvalidUserStatus")
    static let invalidRefundPreference = AppleError(4_000_044, "InvalidRefundPreference")
    static let transactionTypeNotSupported = AppleError(4_000_047, "InvalidTransactionTypeNotSupported")
    static let appTransactionIdNotSupported = AppleError(4_000_048, "AppTransactionIdNotSupported")
    static let invalidAppAccountTokenUUID = AppleError(4_000_183, "InvalidAppAccountTokenUUID")
    static let familyTransactionNotSupported = AppleError(4_000_185, "FamilyTransactionNotSupported")
    static let notOriginalTransactionId = AppleError(4_000_187, "TransactionIdIsNotOriginalTransactionId")
    static let percentageOfSubscription = AppleError(4_000_209, "ConsumptionPercentageAutoRenewableSubscription")
    static let extensionIneligible = AppleError(4_030_004, "SubscriptionExtensionIneligible")
    static let extensionMax = AppleError(4_030_005, "SubscriptionMaxExtension")
    static let familyExtensionIneligible = AppleError(4_030_007, "FamilySharedSubscriptionExtensionIneligible")
    static let accountNotFound = AppleError(4_040_001, "AccountNotFound")
    static let appNotFound = AppleError(4_040_003, "AppNotFound")
    static let originalTransactionIdNotFound = AppleError(4_040_005, "OriginalTransactionIdNotFound")
    static let notificationURLNotFound = AppleError(4_040_007, "ServerNotificationUrlNotFound")
    static let testNotificationNotFound = AppleError(4_040_008, "TestNotificationNotFound")
    static let statusRequestNotFound = AppleError(4_040_009, "StatusRequestNotFound")
    static let transactionIdNotFound = AppleError(4_040_010, "TransactionIdNotFound")
    static let appTransactionDoesNotExist = AppleError(4_040_019, "AppTransactionDoesNotExist")
    static let rateLimitExceeded = AppleError(4_290_000, "RateLimitExceeded")
    static let generalInternal = AppleError(5_000_000, "GeneralInternal")
    static let generalInternalRetryable = AppleError(5_000_001, "GeneralInternalRetryable")

    // Retention messaging.
    static let invalidImage = AppleError(4_000_161, "InvalidImage")
    static let headerTooLong = AppleError(4_000_162, "HeaderTooLong")
    static let bodyTooLong = AppleError(4_000_163, "BodyTooLong")
    static let invalidLocale = AppleError(4_000_164, "InvalidLocale")
    static let altTextTooLong = AppleError(4_000_175, "AltTextTooLong")
    static let invalidPerformanceTest = AppleError(4_000_211, "InvalidPerformanceTestRequest")
    static let invalidRequestId = AppleError(4_000_212, "InvalidRequestId")
    static let badRealtimeURL = AppleError(4_000_215, "BadRequestRealtimeUrl")
    static let badImageSize = AppleError(4_000_216, "BadRequestImageSize")
    static let tooManyBulletPoints = AppleError(4_000_218, "BadRequestTooManyBulletPoints")
    static let bulletPointTooLong = AppleError(4_000_219, "BadRequestBulletPointTextTooLong")
    static let aboveImageRequiresImage = AppleError(4_000_224, "BadRequestAboveImageRequiresAnImage")
    static let tooManyImages = AppleError(4_030_014, "MaximumNumberOfImagesReached")
    static let tooManyMessages = AppleError(4_030_016, "MaximumNumberOfMessagesReached")
    static let imageInUse = AppleError(4_030_019, "ImageInUse")
    static let imageNotFound = AppleError(4_040_014, "ImageNotFound")
    static let messageNotFound = AppleError(4_040_015, "MessageNotFound")
    static let performanceTestNotFound = AppleError(4_040_018, "PerformanceTestRunNotFound")
    static let defaultMessageNotFound = AppleError(4_040_020, "DefaultMessageNotFound")
    static let realtimeURLNotFound = AppleError(4_040_021, "RealtimeUrlNotFound")
    static let imageAlreadyExists = AppleError(4_090_000, "ImageAlreadyExists")
    static let messageAlreadyExists = AppleError(4_090_001, "MessageAlreadyExists")

    /// "If there's no error code, the request is malformed" (Apple, Send Consumption Information).
    static let malformed = AppleError(nil, "MalformedRequest")
    static let percentageOutOfRange = AppleError(nil, "ConsumptionPercentageOutOfRange")
    static let undeliveredPercentage = AppleError(nil, "UndeliveredConsumptionPercentageNonZero")
}
