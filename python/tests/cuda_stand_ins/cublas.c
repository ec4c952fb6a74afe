/* A stand-in for what PyTorch calls of cuBLAS: every call succeeds and does nothing, so that PyTorch allocates what it does around products of
 * matrices. Loaded by LD_PRELOAD before PyTorch's own libraries. The functions ignore their arguments. */
#include <stdlib.h>

#define SUCCEEDS(function) \
    int function(void) { return 0; }
#define MAKES(function)            \
    int function(void **made) {    \
        *made = malloc(1);         \
        return *made == NULL;      \
    }

MAKES(cublasCreate_v2)
MAKES(cublasLtCreate)
MAKES(cublasLtMatmulDescCreate)
MAKES(cublasLtMatrixLayoutCreate)
MAKES(cublasLtMatmulPreferenceCreate)
SUCCEEDS(cublasDestroy_v2)
SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(cublasSetWorkspace_v2)
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2)
SUCCEEDS(cublasSdot_v2)
SUCCEEDS(cublasSgemv_v2)
SUCCEEDS(cublasSgemm_v2)
SUCCEEDS(cublasGemmEx)
SUCCEEDS(cublasGemmStridedBatchedEx)
SUCCEEDS(cublasSgemmStridedBatched)
SUCCEEDS(cublasLtMatmulDescDestroy)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatmul)

int cublasGetMathMode(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int asked, void *results, int *found) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked, (void)results;
    *found = 1;
    return 0;
}
