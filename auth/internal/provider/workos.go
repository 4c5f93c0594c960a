package provider

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// workosBegin: one of three parameters says which of its connections to use. provider is taken by ours,
// so the caller writes workos_provider.
func workosBegin(params map[string]string) error {
	if v, ok := params["workos_provider"]; ok {
		delete(params, "workos_provider")
		params["provider"] = v
	}
	if params["connection"] == "" && params["organization"] == "" && params["provider"] == "" {
		return &Error{Status: http.StatusBadRequest, Code: "validation_failed",
			Message: "WorkOS needs one of the parameters connection, organization and workos_provider"}
	}
	return nil
}

// workosProfile: the profile stands in the token's answer.
func workosProfile(ctx context.Context, s *signIn) (Profile, error) {
	me, ok := s.token.Extra("profile").(map[string]any)
	if !ok {
		return Profile{}, errors.New("the token endpoint's answer has no profile")
	}
	return s.copied(ctx, me)
}

func workosMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	d.set("name full_name", strings.TrimSpace(me.textAt("first_name")+" "+me.textAt("last_name")))
	return nil
}
