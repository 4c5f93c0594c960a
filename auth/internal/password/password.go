// Package password hashes and checks passwords, judges new ones, and keeps the work from starving
// everything else: a bounded number of hashes run at a time behind a short queue, at low priority in a child
// process (Serve is its life), or in this one.
//
// It knows no users and stores nothing. New hashes are bcrypt or argon2id; imported ones may also be
// argon2i, Firebase's scrypt and PBKDF2. No text of this package ever holds a password, a salt or a
// hash.
package password

import "errors"

// MaxBytes is the longest password that is stored. bcrypt ignores what comes after, so a longer one
// would be another password than its owner thinks; argon2id keeps the limit, so that the setting can
// change.
const MaxBytes = 72

var (
	// ErrTooLong: a new password of more than MaxBytes bytes.
	ErrTooLong = errors.New("password: longer than 72 bytes")
	// ErrBusy: every worker is busy and the queue is full. The error is a *Busy.
	ErrBusy = errors.New("password: all workers are busy")
	// ErrClosed: the workers have been closed.
	ErrClosed = errors.New("password: the workers are closed")
)
