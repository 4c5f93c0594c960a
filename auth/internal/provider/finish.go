package provider

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/outbound"
)

// signIn is a sign-in in a browser whose code has been exchanged for the provider's token.
type signIn struct {
	*Provider
	token    *oauth2.Token
	keep     private
	callback url.Values
}

// Finish exchanges the parameters of the callback for a profile. They come from the callback's query or, with FormPost,
// from its form. keep is Begun.Private. Errors are of type *Error.
func (p *Provider) Finish(ctx context.Context, callback url.Values, keep []byte) (Profile, error) {
	ctx = p.calling(ctx)
	kept, err := openPrivate(keep)
	if err != nil {
		return Profile{}, noExchange(errors.New("what Begin kept can't be read"))
	}
	if code := callback.Get("error"); code != "" {
		return Profile{}, &Error{Status: http.StatusBadRequest, OAuth: code, Message: callback.Get("error_description")}
	}
	if p.oauth1 {
		return p.finishOAuth1(ctx, callback, kept)
	}
	code := callback.Get("code")
	if code == "" {
		return Profile{}, badCallback("OAuth callback with missing authorization code missing")
	}
	at, err := p.endpoints(ctx)
	if err != nil {
		return Profile{}, noExchange(err)
	}
	if err := p.checkIssuer(callback, at); err != nil {
		return Profile{}, err
	}
	t, err := p.exchange(ctx, at, code, kept)
	if err != nil {
		return Profile{}, noExchange(err)
	}
	s := &signIn{Provider: p, token: t, keep: kept, callback: callback}
	read := s.readProfile
	if p.read != nil {
		read = func(ctx context.Context) (Profile, error) { return p.read(ctx, s) }
	}
	d, err := read(ctx)
	if err == nil {
		err = p.complete(&d)
	}
	if err != nil {
		return Profile{}, noProfile(err)
	}
	d.Token, d.RefreshToken = t.AccessToken, t.RefreshToken
	return d, nil
}

// checkIssuer refuses a callback that comes from another provider (mix-up attack, RFC 9207). If the callback has the
// parameter iss, it must name this provider's issuer. If the provider's document says that callbacks have iss, the
// parameter is required.
func (p *Provider) checkIssuer(callback url.Values, at endpoints) error {
	issuers := callback["iss"]
	if len(issuers) == 0 {
		if at.document != nil && at.document.sendsIssuer {
			return badCallback("OAuth callback without the issuer that this provider sends")
		}
		return nil
	}
	t := p.trust()
	if t.issuer == "" {
		return nil // the issuer's name is unknown
	}
	if len(issuers) > 1 || !t.accepts(issuers[0]) {
		e := badCallback("OAuth callback comes from another issuer")
		e.Err = fmt.Errorf("%s is expected, not %.200q", t.issuer, issuers[0])
		return e
	}
	return nil
}

// exchange exchanges the code, once: it tries no other style of authentication and follows no redirect.
func (p *Provider) exchange(ctx context.Context, at endpoints, code string, kept private) (*oauth2.Token, error) {
	var options []oauth2.AuthCodeOption
	if kept.Verifier != "" {
		options = append(options, oauth2.VerifierOption(kept.Verifier))
	}
	if p.formFields != nil {
		for name, value := range p.formFields(p) {
			options = append(options, oauth2.SetAuthURLParam(name, value))
		}
	}
	once := &http.Client{
		Transport: acceptJSON{at.client.Transport}, Timeout: at.client.Timeout,
		CheckRedirect: outbound.NoRedirect,
	}
	t, err := p.config(at).Exchange(context.WithValue(ctx, oauth2.HTTPClient, once), code, options...)
	if err != nil {
		return nil, err
	}
	if ok, isBool := t.Extra("ok").(bool); isBool && !ok { // Slack says so, possibly without an error
		return nil, errors.New("the token endpoint says that it is not ok")
	}
	return t, nil
}

// acceptJSON is a transport that requests JSON, which GitHub sends only on request. It recognizes JSON in an answer by
// the content: package oauth2 goes by the declared type, and some servers declare text/plain.
type acceptJSON struct{ next http.RoundTripper }

func (a acceptJSON) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	resp, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := bufio.NewReaderSize(resp.Body, 16) // the smallest size that bufio allows
	if start, _ := body.Peek(16); bytes.HasPrefix(bytes.TrimLeft(start, " \t\r\n"), []byte("{")) {
		resp.Header.Set("Content-Type", "application/json")
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{body, resp.Body}
	return resp, nil
}

// idToken returns the ID token in the token endpoint's answer; "" if there is none.
func (s *signIn) idToken() string {
	text, _ := s.token.Extra("id_token").(string)
	return text
}

// readProfile calls the profile endpoint, and copies the fields that the provider's row names.
func (s *signIn) readProfile(ctx context.Context) (Profile, error) {
	me, err := s.me(ctx)
	if err != nil {
		return Profile{}, err
	}
	return s.copied(ctx, me)
}

// copied returns a profile with the fields that the provider's row names, copied from the answer me.
func (s *signIn) copied(ctx context.Context, me jsonObject) (Profile, error) {
	d := Profile{Subject: me.idAt(s.sub), Data: map[string]any{"iss": s.apiURL()}}
	for names, path := range s.fields {
		d.set(names, me.lookup(path))
	}
	for name, path := range s.custom {
		d.setCustom(name, me.lookup(path))
	}
	if s.email != "" {
		verified := s.verified == assumed || slices.ContainsFunc(strings.Fields(s.verified), me.isTrue)
		d.addEmail(me.textAt(s.email), verified, true)
	}
	if s.more != nil {
		if err := s.more(ctx, s, me, &d); err != nil {
			return Profile{}, err
		}
	}
	return d, nil
}

// complete does what every profile needs: it requires a subject, removes text that PostgreSQL refuses, and applies the
// operator's setting DISTRUST_EMAIL.
func (p *Provider) complete(d *Profile) error {
	d.Provider = p.name
	if d.Subject == "" {
		return errors.New("the provider names no subject")
	}
	if len(d.Subject) > maxSubject || hasControl(d.Subject) {
		return fmt.Errorf("the subject is longer than %d bytes or has control characters", maxSubject)
	}
	d.set("sub provider_id", d.Subject)
	if p.client.DistrustEmail {
		for i := range d.Emails {
			d.Emails[i].Verified = false
		}
	}
	d.Emails = slices.Clip(d.Emails)
	return nil
}
