// Package webauthn reads and verifies what authenticators answer (W3C Web Authentication Level 3), and makes what they
// are asked: the options of both ceremonies and their challenges. It knows no HTTP, SQL, clock or setting, and needs
// nothing but the standard library: CBOR (RFC 8949) is read by a small reader of its own.
//
// Attestation is not judged: whatever its format, the statement must only be a well-formed map.
package webauthn

import (
	"errors"
	"fmt"
)

// ErrUnreadable is the error of a message that is not of the form that a browser sends.
var ErrUnreadable = errors.New("webauthn: unreadable message")

func unreadable(what string) error { return fmt.Errorf("%w: %s", ErrUnreadable, what) }

// Failure is the check that a readable message did not pass, for logs and the audit log.
type Failure string

// The failures.
const (
	FailedType             Failure = "type"
	FailedChallenge        Failure = "challenge"
	FailedOrigin           Failure = "origin"
	FailedCrossOrigin      Failure = "cross_origin"
	FailedRPID             Failure = "rp_id"
	FailedUserPresence     Failure = "user_presence"
	FailedUserVerification Failure = "user_verification"
	FailedBackupFlags      Failure = "backup_flags"
	FailedAlgorithm        Failure = "algorithm"
	FailedKey              Failure = "key"
	FailedCredentialID     Failure = "credential_id"
	FailedUserHandle       Failure = "user_handle"
	FailedSignature        Failure = "signature"
	FailedSignCount        Failure = "sign_count"
	UnknownCredential      Failure = "unknown_credential"
)

// Error returns the failure as a sentence for the log.
func (f Failure) Error() string { return "webauthn: the check of " + string(f) + " failed" }

// Credential is what is kept of a registered credential.
type Credential struct {
	ID []byte
	// PublicKey is the COSE_Key as the authenticator sent it.
	PublicKey []byte
	AAGUID    [16]byte
	SignCount uint32
	// Transports are what the browser reported, for later options.
	Transports               []string
	BackupEligible, BackedUp bool
	UserVerified             bool
}

// Policy is what a message must agree with besides the credential.
type Policy struct {
	RPID    string
	Origins []string
	// Challenges are those that are accepted: one for each root key.
	Challenges [][]byte
	RequireUV  bool
}
