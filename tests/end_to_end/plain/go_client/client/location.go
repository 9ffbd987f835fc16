// Copyright the sax authors. SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	adminpb "sax/proto/admin"
)

const locationFile = "location.proto"

// adminAddress returns the host:port that a cell's admin server wrote into the cell's folder below
// the root.
func adminAddress(root, cell string) (string, error) {
	path := filepath.Join(root, cell, locationFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	location := &adminpb.Location{}
	if err := proto.Unmarshal(content, location); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if location.GetLocation() == "" {
		return "", fmt.Errorf("%s holds no address", path)
	}
	return location.GetLocation(), nil
}
