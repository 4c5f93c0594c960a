package webauthn

import "bytes"

// Verify checks a registration (L3, 7.1) and returns the credential to store. An error is a Failure.
func (r *Registration) Verify(p *Policy) (Credential, error) {
	if err := r.client.check("webauthn.create", p); err != nil {
		return Credential{}, err
	}
	if err := r.auth.check(p); err != nil {
		return Credential{}, err
	}
	if !bytes.Equal(r.id, r.auth.id) {
		return Credential{}, FailedCredentialID
	}
	if _, err := parseKey(r.auth.key); err != nil {
		return Credential{}, err
	}
	return Credential{
		ID: r.id, PublicKey: bytes.Clone(r.auth.key), AAGUID: r.auth.aaguid, SignCount: r.auth.count,
		Transports: r.transports, BackupEligible: r.auth.has(flagBE), BackedUp: r.auth.has(flagBS),
		UserVerified: r.auth.has(flagUV),
	}, nil
}

// CheckKey reports whether signatures of a stored credential can be verified.
func CheckKey(cose []byte) error {
	_, err := parseKey(cose)
	return err
}

// Check makes the checks that need no stored credential. An error is a Failure.
func (a *Assertion) Check(p *Policy) error {
	if err := a.client.check("webauthn.get", p); err != nil {
		return err
	}
	return a.auth.check(p)
}

// Verify checks an assertion, after Check, against the credential that it names (L3, 7.2). It returns the credential to
// store, with the present state of backup, the counter if that is checked, and whether the user was verified. An error
// is a Failure.
func (a *Assertion) Verify(c Credential) (Credential, error) {
	verify, err := parseKey(c.PublicKey)
	switch {
	case err != nil:
		return c, FailedKey
	case !bytes.Equal(a.ID, c.ID):
		return c, FailedCredentialID
	case a.auth.has(flagBE) != c.BackupEligible:
		return c, FailedBackupFlags
	case !verify(a.signed, a.signature):
		return c, FailedSignature
	}
	// The devices of a synced passkey share the key but count separately, so only the counter of a device-bound
	// credential is checked.
	if !c.BackupEligible {
		if a.auth.count <= c.SignCount && (a.auth.count != 0 || c.SignCount != 0) {
			return c, FailedSignCount
		}
		c.SignCount = a.auth.count
	}
	c.BackedUp, c.UserVerified = a.auth.has(flagBS), a.auth.has(flagUV)
	return c, nil
}
